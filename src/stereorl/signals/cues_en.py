"""English cues, in the order in which they are read (see `cues`)."""

from __future__ import annotations

import re

from stereorl.signals.cues import Cue

_THING = (
    r"(?:answer|reply|response|output|code|text|tone|result|solution|function|script|program|query|explanation|"
    r"summary|translation|version|draft|style|format|first|second|third|last|one|part|paragraph|sentence|line|file|"
    r"link|command|tests?|number|date|name|e-?mail|poem|story|list|table|intro|introduction|ending|title|content|"
    r"description|example|step|message|comment|tool|page|image|order|total|calculation|wording|formatting)"
)
_SUBJECT = rf"\b(?:it|this|that|these|those|they|you|(?:the|your|this|that|its) (?:\w+ ){{0,2}}?{_THING})"
_IS = r"(?:'s|'re| is| was| are| were| looks| sounds| seems| feels| reads)"
_ADVERB = r"(?: (?:just|really|very|so|still|simply|completely|totally|all|quite|plain|also|a bit|a little|pretty|actually))?"
_WRONG = (
    r"(?:wrong|incorrect|false|untrue|bad|broken|nonsense|useless|terrible|awful|horrible|confusing|unclear|misleading|"
    r"inaccurate|outdated|buggy|off|rubbish|garbage|ridiculous|unacceptable|unhelpful|unnecessary|irrelevant|robotic|"
    r"incomplete|boring|cold|stiff|bland|generic|vague|verbose|wordy|rude|repetitive|redundant|invalid|mistaken|poor|"
    r"weak|messy|dull|lame|hard to (?:read|follow|understand)|difficult to (?:read|follow|understand)|missing)"
)
_GOOD = (
    r"(?:great|perfect|perfectly|awesome|excellent|brilliant|wonderful|fantastic|amazing|superb|lovely|beautiful|nice|"
    r"nicely|neat|terrific|outstanding|impressive|flawless|splendid|good|fine|right|correct|clear|helpful|useful|better|"
    r"ok|okay|well|ideal|accurate|acceptable|satisf\w+|enough|what i)"
)
_COMPARATIVE = (
    r"(?:shorter|longer|simpler|briefer|clearer|softer|warmer|friendlier|kinder|nicer|politer|funnier|tighter|punchier|"
    r"smoother|cleaner|easier|livelier|lighter|stronger|gentler|slower|faster|smaller|bigger|plainer|snappier|catchier|"
    r"(?:more|less) (?!than|of|to|about|and|or)\w+)"
)
_STYLE = (
    r"(?:bold|italics?|markdown|bullets?|bullet points?|points|lists?|numbered lists?|headings?|headers?|emojis?|jargon|"
    r"explanations?|formatting|tables?|quotes?|quotation marks|fluff|preamble|introductions?|intro|exclamation marks?|"
    r"comments?|apolog\w+|disclaimers?|adjectives|repetitions?|examples?|asterisks|hashtags|filler|details?|latex|"
    r"equations?|steps?|slang|abbreviations|capitals|caps|code blocks?|greetings?|summary|conclusion|words|text)"
)
_COUNT = r"(?:one|two|three|four|five|six|ten|a|an|a single|a couple of|a few|\d{1,4})"
_UNIT = r"(?:sentences?|words?|lines?|paragraphs?|characters?|bullets?|bullet points?|items?|pages?|phrases?|liner)"
_LANGUAGE = (
    r"(?:english|chinese|mandarin|spanish|french|german|italian|portuguese|russian|japanese|korean|arabic|hindi|dutch|"
    r"polish|turkish|latin|swedish|greek|hebrew|vietnamese|thai)"
)
_PLEASE = r"^(?:(?:please|and|but|so|also|just|then|ok|okay|now|could you|can you|would you|will you|kindly|maybe|pls|plz) )*"
_NOT = r"(?:not|isn't|wasn't|aren't|weren't|ain't|never|hardly|far from)"

# A clause that opens a new request: its words describe the new task, not the reply.
NEW_TASK = re.compile(
    _PLEASE + r"(?:help me |i(?:'d| would) like (?:you )?to |i (?:want|need) (?:you )?to |let's )?"
    r"(?:write|draft|create|generate|compose|list|give|tell|show|explain|describe|summari[sz]e|translate|compare|calculate|"
    r"compute|find|search|look up|suggest|recommend|plan|build|implement|design|convert|define|prove|solve|name|book|"
    r"schedule|remind|send|open|read|play|count|draw|proofread|classify|imagine|pretend|rewrite|fix|buy|teach)\b"
    r"(?! (?:me |us |them |him |her |the answer |it )?(?:it|this|that|them|these|those|again|just|only|more|less|fewer|"
    r"another|a different|something (?:else|different)|in)\b)"
    r"(?! (?:me )?(?:the|your) (?:\w+ )?(?:error|mistake|typo|bug|issue|answer|reply|response|tone|format|style)s?\b)"
)
QUESTION = re.compile(
    r"^(?:(?:and|so|but|ok|okay|well|then|also) )*(?:(?:what|who|whom|whose|which|when|where|why|how)(?:'s|'re|'d)?\b"
    r"(?! (?:a|an) (?:\w+ )?(?:answer|job|reply|mess|relief|work)\b)"
    r"|(?!do it\b)(?:is|are|was|were|do|does|did|has|have|had|should|shall|may|might|am|can|could|would|will)(?:n't)? "
    r"(?:it|this|that|these|those|you|i|we|they|he|she|there|the|your|my|a|an|any)\b)"
)
REQUEST = re.compile(
    r"^(?:(?:and|so|but|ok|okay|well|then|also) )*(?:can|could|would|will|can't|couldn't) (?:you|we|it|i|this|that)\b"
    r"|\b(?:please|pls|plz)\b|^(?:how|what) (?:about|if)\b|\bmind \w+ing\b|^why (?:not|don't|can't)\b"
)

# fmt: off
CUES: tuple[Cue, ...] = (
    # --- idioms
    Cue("approval", "praise", r"\bnot (?:too |so |half |at all )?(?:bad|wrong|shabby)\b"),
    Cue("approval", "praise", r"^(?:it's |that's |there(?:'s| is) )?no (?:problems?|worries|issues?|complaints)\b(?! with)"),
    Cue("approval", "praise", r"\bno (?:more |longer any )?(?:errors?|failures?)(?: anymore| now| any more)?$"),
    Cue("approval", "praise", r"\b(?:can't|cannot|can not) complain\b|\bcould(?: not|n't) (?:be|have been|have said|ask for|agree)\b.*|\bis all i (?:wanted|needed|asked for|need|want)\b"),
    Cue("approval", "praise", r"\bnothing (?:is )?(?:wrong|to (?:change|add|fix|complain about))\b|\bnever better\b"),
    Cue("approval", "praise", r"\b(?:don't|do not) change (?:a thing|anything|it)\b|\bkeep it up\b|\bkeep up the good work\b"),
    Cue("approval", "praise", r"\bdoesn't get (?:any )?better\b|\bno longer (?:broken|fails|failing|crashes)\b"),
    Cue("approval", "praise", r"\byou(?:'re| are) (?:so |absolutely |totally |completely |quite )?(?:right|correct|the best)\b"),
    Cue("approval", "praise", r"(?<!not )(?:\b(?:exactly|just|precisely) |\b(?:that|this|it)(?:'s| is| was) )(?:what|the \w+|as) i (?:needed|wanted|want|need|meant|asked for|was (?:after|looking for|hoping for))\b"),
    Cue("understood", "praise", r"\bi (?:get|understand|see) (?:it|this|that)(?: now)?$|\b(?:get|understand) it now\b"),
    Cue("dismissal", "bare", r"\b(?:thanks|thank you) for nothing\b|^no,? (?:thanks|thank you|thx)\b|\bnice try\b"),
    Cue("idiom", "neutral", r"\b(?:never|don't|do not) (?:mind|worry|bother|be sorry|hesitate)\b|\bwhy not\b|\bnot only\b"),
    Cue("idiom", "neutral", r"\byou (?:don't|do not) (?:have|need) to\b(?: (?:apologi[sz]e|worry|thank))|\bno need to apologi[sz]e\b"),
    Cue("idiom", "neutral", r"\b(?:me|you|i|us|we) too\b|\b(?:i'm|i am|we're|we are|my \w+ (?:is|are)) too \w+|\btoo (?:kind|good)\b"),
    Cue("idiom", "neutral", r"\bkeep (?:that|this|it) in mind\b|\bright now\b|\bgood (?:morning|evening|afternoon|night)\b"),
    Cue("idiom", "neutral", r"\bmy (?!question|request|name|point|code|script|test)\w+(?: \w+)? (?:doesn't|does not|won't|isn't|can't)\b.*"),
    Cue("idiom", "neutral", r"\b(?:didn't|did not|never) expect(?:ed)? (?:it|this|that) to be\b.*|\bsounds? like a plan\b"),
    Cue("own mistake", "own_mistake", r"\bmy (?:own )?(?:mistake|bad|fault|error)\b|\bi (?:mis(?:typed|spoke|read|spelled)|made a typo|was wrong|got confused)\b"),
    Cue("own mistake", "own_mistake", r"^(?:oops|whoops|scratch that)\b"),
    # --- what should change
    Cue("that would be better", "directive", r"^.*\b(?:would|'d|might) be (?:much |even |a bit |really )?(?:great|nice|better|good|helpful|perfect|lovely|cool|ideal|nicer)\b.*"),
    Cue("could be better", "directive", r"\bcould (?:be|use|have been|do with)\b(?= (?:more|less|a bit|a little|some|\w+er\b))"),
    Cue("misunderstood", "bare", r"\byou (?:\w+ )?(?:misunderstood|misread|didn't (?:understand|get|listen|read)|did not (?:understand|get|listen|read))\b(?: (?:me|it|that|my \w+|the \w+))?"),
    Cue("not answered", "bare", r"\byou (?:\w+ )?(?:didn't|did not|haven't|have not|never) (?:actually |really |even )?(?:answer(?:ed)?|address(?:ed)?|help(?:ed)?)\b(?: (?:me|it|that|my|the|what i \w+))*(?: question| request| message)?"),
    Cue("not what was asked", "bare", rf"\b{_NOT} (?:\w+ )?what i (?:asked|wanted|meant|said|need|needed|had in mind|was (?:after|asking))(?: for| to \w+)?(?: at all)?"),
    Cue("too much of something", "directive", r"(?:\b(?:way|far|much|still|a bit|a little|just) )?\b(?:too|overly) (?!late\b|bad\b)\w+(?: \w+)?"),
    Cue("too much of something", "directive", r"\bso (?:long|verbose|wordy|short|formal|complicated|slow|cold|vague|rude|dry|technical|many \w+|much \w+)\b(?! as)"),
    Cue("make it so", "directive", r"\b(?:make|keep|get|have) (?:it|this|that|them|these|those|everything|your \w+)(?! (?:is|was|to the|up|coming|going)\b)\b.*"),
    Cue("make it so", "directive", rf"\b(?:make|keep|get) (?:the|each|every|all|my) .{{0,60}}?\b(?:{_COMPARATIVE}|short|simple|brief|concise|formal|casual)\b"),
    Cue("change it", "directive", r"\b(?:shorten|simplify|condense|trim|tighten|expand|lengthen|elaborate|reformat|proofread|tone)\b (?:it|this|that|them|down|on|the|your)\b.*"),
    Cue("change it", "directive", _PLEASE + r"(?:fix|correct|change|adjust|tweak|edit|update|replace) (?:it|this|that|them|the (?:\w+ )?(?:error|mistake|typo|bug|issue|tone|format|style|ending|title|intro|wording|date|name|number|first|second|third|last)s?|your)\b.*"),
    Cue("take out / put in", "directive", _PLEASE + r"(?:drop|remove|delete|omit|cut|skip|lose|leave out|take out|get rid of|strip) (?:the|that|this|those|these|all|any|your|it|them|out)\b.*"),
    Cue("take out / put in", "directive", r"\b(?:remove|delete|drop|cut) (?:it|them)$"),
    Cue("take out / put in", "directive", _PLEASE + r"(?:add|include|mention|put in|insert) (?:a|an|the|some|more|at least|also|your|it)\b(?!.*\bto (?:the|my) (?:\w+ )?(?:file|calendar|cart|basket|shopping))(?! it\b).*"),
    Cue("instead", "directive", r"^.*\b(?:instead|rather than)\b.*"),
    Cue("do not", "directive", r"(?:" + _PLEASE + r"|\bi (?:said|told you|asked you) )(?:don't|do not|dont|avoid|never|quit|refrain from|no need (?:to|for))\s+\w.*"),
    Cue("do not", "directive", r"\bstop (?:\w+ )?\w+ing\b.*"),
    Cue("without", "directive", rf"\b(?:without|no|fewer|less|drop the|skip the|cut the) (?:more |any |the |all |so many |so much )?(?:\w+ ){{0,2}}?{_STYLE}\b"),
    Cue("so long", "directive", rf"\b(?:in|to|under|below|at most|at least|max(?:imum)?(?: of)?|no more than|within|only|just|up to|exactly|(?:less|fewer|more) than|limit(?: it)? to) {_COUNT}(?: \w+)? {_UNIT}\b"),
    Cue("so long", "directive", rf"\b{_COUNT} (?:\w+ )?{_UNIT} (?:max|maximum|only|at most|please|is enough|tops|or less|or fewer|will do)\b"),
    Cue("in that language", "directive", rf"^(?:and |but |please )*(?:in (?:\w+ )?{_LANGUAGE}|{_LANGUAGE})(?: (?:please|only|instead|this time|pls))?$"),
    Cue("in that language", "directive", rf"\b(?:answer|reply|respond|speak|talk|write|say|repeat|put)(?: \w+){{0,2}} (?:in|into|to) (?:\w+ )?{_LANGUAGE}\b.*"),
    Cue("answer like this", "directive", _PLEASE + r"(?:answer|reply|respond|speak|talk|be|sound|stick|format|phrase|say|try to be|focus|address|give) (?:(?:it|that|this|me|to|them|your \w+|the \w+) )*(?:with|in|using|as|like|more|less|briefly|shortly|directly|only|just|concise|concisely|specific|honest|careful|brief|short|to|on|friendlier|kinder|formal|casual|polite|at)\b.*"),
    Cue("use this", "directive", _PLEASE + r"(?:use|try using|start with|begin with|end with|write|put|say|speak|call) (?:(?!now\b|today\b)\w+ ){0,3}?(?:units?|formats?|style|words?|bullets?|points?|tables?|markdown|headings?|latex|tone|language|sentences?|paragraphs?|emojis?|spacing|indentation|tabs|type hints|names?|it (?:as|like|in|with|more)|this (?:as|like|in|with)|that (?:as|like|in|with))\b.*"),
    Cue("only that", "directive", _PLEASE + r"(?:(?:just|only) (?:give|answer|the|show|say|write|tell|return|output|one|a|what|reply|print|list)|(?:give|tell|show|send) (?:me )?(?:just|only|less|fewer))\b.*"),
    Cue("comparative", "directive", r"\bin (?:simple|simpler|plain|fewer|other|layman's|your own) (?:words|terms|english|language)\b"),
    Cue("comparative", "directive", rf"^(?:please |and |but |a (?:bit|little|lot|tad) |much |even |way |ok |or )*{_COMPARATIVE}(?: \w+)?(?: please| pls| plz| now| this time| next time| than that| than this)?$"),
    Cue("comparative", "directive", rf"\b(?:be|sound|get) (?:a bit |a little |much |even |way )?{_COMPARATIVE}\b.*"),
    Cue("comparative", "directive", r"\b(?:more|less) (?:concise|concisely|specific|specifically|formal|formally|casual|simply|briefly|clearly|detailed?|technical|friendly|polite|precise|natural|creative|playful|direct|directly|professional|personal|human|serious|emotional|in depth)\b"),
    Cue("comparative", "directive", r"\b(?<!about )(?:something|anything|somewhat|one) (?:\w+ )?(?:shorter|longer|simpler|funnier|warmer|lighter|catchier|else|different)\b"),
    Cue("asked for something else", "directive", r"\bi (?:had |have |really |specifically |explicitly |already |only |clearly |just |was )*(?:asked|said|told you|wanted|meant|hoping|looking for|asking|expecting|expected|needed|requested|'?d prefer|would prefer|prefer|'?d rather|would rather)\b(?! (?:to )?(?:ask|know|thank|thanks|say|learn|share)\b).*"),
    Cue("asked for something else", "directive", r"\bi(?:'d| would)(?: have)? (?:much |really )?(?:prefer|rather|like it|love it if|appreciate)\b.*"),
    Cue("you failed to", "directive", r"\byou(?:'ve| have| just| also| still| again| completely| even| always)* (?:forgot(?:ten)?|miss(?:ed|ing)?|left out|omitted|skipped|ignored|mixed up|got (?:it|that|this|the \w+) wrong|keep (?:on )?\w+ing|kept \w+ing|repeat(?:ed)?|made (?:a|an|another|some|the same) (?:\w+ )?(?:mistakes?|errors?)|broke|failed|deleted|used|should(?:n't| not)?(?: have)?|were (?:not )?supposed to|weren't supposed to|need(?:ed)? to|have to|must|didn't|did not|haven't|have not|aren't|can't just|can not)\b.*"),
    Cue("it lacks", "directive", _SUBJECT + r"(?: \w+)? (?:doesn't|does not|didn't|did not|don't|do not|never|hardly) (?:\w+ )?(?:follow|respect|use|include|contain|mention|cover|meet|keep|say|explain|show|address)\b.*"),
    Cue("it should be", "directive", _SUBJECT + r" (?:should(?:n't| not)?|needs? to|must|ought to|has to|was supposed to|is supposed to) (?:be |have |mention|include|say|read|start|end|contain|use|not|also|work|show|return).*"),
    Cue("it should be", "directive", r"\bshould(?:n't| not)? (?:be|have been|have|read|say)\b(?! (?:fine|good|ok|okay|great|enough|perfect))(?=.* \w).*|\bthe (?:correct|right|actual|real) (?:answer|value|name|number|date|one|result) (?:is|was|should).*"),
    Cue("from now on", "directive", r"^.*\b(?:from now on|next time|in (?:the )?future|going forward|remember to|make sure|be sure to|always (?:use|answer|write|start|end|include|put|keep|reply))\b.*"),
    Cue("dislike", "directive", r"\bi (?:really |just |also )*(?:don't|do not|didn't|dont) (?:really |particularly )?(?:like|love|want|need)\b(?! (?:it|this|that)$).*|\bi (?:really )?(?:hate|dislike|can't stand) (?:the|how|when|your|this \w+|that \w+|it when)\b.*"),
    Cue("like this please", "directive", r"^(?!(?:yes|no|next|more|one more|continue|go|sure|ok|okay|help|wait|now|me)\b)(?:\w+ ){1,3}(?:please|pls|plz)$"),
    # --- dissatisfaction without direction
    Cue("confusion", "complaint", r"^(?:what|huh|eh|wtf|pardon|excuse me|come again|what the (?:hell|heck)|seriously)$"),
    Cue("outrage", "complaint", r"\bare you (?:kidding|serious|joking|stupid|blind|even (?:reading|listening))\b|\bwhat the (?:hell|heck)\b"),
    Cue("complaint", "complaint", r"^(?:and |but |so )?why (?:is|are|did|do|does|would|have|has) (?:it|this|that|you|your|the \w+)\b.*\b(?:so|too|still|not|again|answering|using|keep|giving|adding|repeating|writing|ignoring|switch\w*)\b.*"),
    Cue("complaint", "complaint", r"^why (?:didn't|don't|can't|won't|couldn't) you\b.*|^(?:can't|couldn't|don't|didn't) you\b.*|\bhow many times\b.*"),
    Cue("refusal", "bare", r"^(?:no+|nope|nah|stop|wrong|incorrect|false|bad|nonsense|rubbish|garbage|useless|ugh|meh|boo|disagree|no way|error|fail|terrible|awful|horrible|not (?:this|that|really|exactly|at all|yet|quite|like (?:this|that)))(?: (?:again|answer|no|it's not|it isn't|not))?$"),
    Cue("refusal", "bare", r"^(?:no+|nope) (?=(?:that|this|it|you|i|the)\b)(?!(?:that|this|it)(?:'s| is) (?:fine|good|great|ok|okay|perfect|right|all))"),
    Cue("negated praise", "bare", rf"\b(?:{_NOT}|n't)(?: (?:really|very|that|so|at all|particularly|quite|all that|exactly|even|as|a|the|too|any|terribly)){{0,2}} {_GOOD}\b(?: enough)?"),
    Cue("negated praise", "bare", r"\bnot (?:quite|there yet|true|impressed|happy|convinced|working|sure that's right|how)\b"),
    Cue("does not work", "bare", r"\b(?:doesn't|does not|didn't|did not|don't|won't|isn't|wasn't|aren't|not|can't|cannot|never|couldn't)(?: (?:even|really|seem to|actually|make|look|sound|any|quite|fully|be))* (?:works?|working|help|helping|compile|run|running|exist|match|sense|fit|build|pass|passing|render|load|right|add up|solve|fix|start|open|print|respond|parse|valid)\b(?: (?:at all|for me|anymore|here|yet|on my \w+))?"),
    Cue("makes no sense", "bare", r"\bmakes? (?:no|zero|little) sense\b|\bnonsense\b|\bwaste of (?:my )?time\b|\bno idea what\b"),
    Cue("still wrong", "bare", r"\bstill (?:wrong|broken|failing|fails?|not|too|the same|getting|crash\w*|an? error|incorrect|doesn't|does not|no|bad|missing|see|get)\b|\bsame (?:error|problem|issue|mistake|result|thing|answer)(?: again| as before)?\b"),
    Cue("it failed", "bare", r"\b(?:it|this|that|they|code|script|tests?|build|function|program|command|your \w+) (?:just |now |still |always |all |immediately )*(?:fails?|failed|crash(?:es|ed)|throws?|threw|errors? out|breaks?|broke|hangs?|raises?|raised)\b.*"),
    Cue("it failed", "bare", r"\b(?:get|got|getting|gives?|gave|see|seeing|returns?|throws?|another|there(?:'s| is| are)|has|have|contains?)(?: me)?(?: an?| the(?: same)?| this| some| another| several| many| two)?(?: \w+)? (?:errors?|exception|mistakes?|typos?|bugs?)\b.*"),
    Cue("wrong", "bare", rf"{_SUBJECT}{_IS}(?: not just)?{_ADVERB}(?: an?)?{_ADVERB} {_WRONG}\b"),
    Cue("wrong", "bare", r"\b(?:terrible|awful|horrible|bad|wrong|useless|poor|lousy|stupid|lazy|incorrect|worst) (?:answer|reply|response|job|result|output|work|advice|code|translation|summary|file|function|language|one|order|format|tone|number|name|date|person|city|year|way|direction)\b"),
    Cue("wrong", "bare", r"\byou(?:'re| are| were)(?: \w+)? (?:wrong|mistaken|incorrect|lying|hallucinating|making (?:this|that|it|things) up|useless|confused)\b|\byou (?:got|did) (?:it|that|this) wrong\b"),
    Cue("not understood", "bare", r"\bi (?:really |still |just )*(?:don't|do not|didn't|can't|cannot|dont) (?:understand|get (?:it|this|that)|follow|think so|agree|like (?:it|this|that)|want (?:it|this|that)|think (?:that's|this is|it's))\b(?: (?:this|that|it|you|any of (?:this|it)))?(?: at all)?|\bi(?:'m| am) (?:lost|confused)\b"),
    Cue("displeasure", "bare", r"\b(?:disappoint(?:ed|ing)|unhappy|frustrat(?:ed|ing)|annoy(?:ed|ing)|fed up|i (?:hate|dislike) (?:it|this|that)|unimpressed|this sucks|you suck)\b"),
    Cue("sounds artificial", "bare", r"\b(?:sounds?|reads?|looks?|feels?|reading) (?:like|as if)(?: \w+)* (?:robot|machine|ai|ad|advert\w*|marketing|template|bot|translation|textbook)\b.*|\b(?:ai-like|robotic)\b"),
    Cue("again", "bare", r"\b(?:try|do|answer|start|check|read|look)(?: (?:it|that|this|at it|my \w+))?(?: once)? (?:again|over|once more)\b|^(?:again|once more|one more time)$|\b(?:redo|re-do|retry|regenerate)\b(?: (?:it|this|that))?"),
    Cue("again", "bare", r"\b(?:try|do|have|take) (?:that|this|it|another (?:go|try|shot|look)|one more (?:go|try))\b(?: again| over)?(?! (?:in|out|for)\b)"),
    Cue("again", "bare", r"\b(?:properly|correctly|right) this time\b|\bundo (?:it|that|this)\b|\brevert (?:it|that|this)\b"),
    Cue("again", "bare", _PLEASE + r"(?:re-?write|re-?phrase|re-?word|revise|rework)\b(?: (?:it|this|that|them|the \w+|your \w+|everything|all of it))?"),
    Cue("another", "bare", r"\b(?:another|a different|some other|different|other) (?:one|version|option|idea|name|answer|try|suggestions?|way|approach|ones|attempt)\b"),
    Cue("thumbs down", "bare", "[\U0001f44e\U0001f621\U0001f620\U0001f92c\U0001f644\U0001f926\u274c]"),
    # --- satisfaction
    Cue("thanks", "praise", r"\b(?:thanks|thank (?:you|u|god)|thx|tysm|ty|tks|cheers|much appreciated|grateful)\b|\bappreciate (?:it|that|this|the|your)\b|\bi appreciate\b"),
    Cue("praise", "praise", r"\b(?:great|perfect|perfectly|awesome|excellent|brilliant|wonderful|fantastic|amazing|superb|lovely|nice|neat|terrific|outstanding|spot on|bravo|impressive|flawless|splendid|delightful|well done|good (?:job|work|catch|answer|one|point|stuff|call|enough)|nailed it|on point|lgtm|beautiful(?:ly)?)\b"),
    Cue("approval", "praise", rf"{_SUBJECT}{_IS}{_ADVERB}(?: the)?{_ADVERB} (?:good|fine|right|correct|clear|helpful|better|useful|ok|okay|quick|it|one|much better|enough|what i (?:needed|wanted|meant|was (?:after|looking for))|exactly|just right|all i needed|accurate|funny|cute)\b"),
    Cue("approval", "praise", r"\b(?:looks?|sounds?|seems?|reads?|works?|went|all) (?:very |really |so |pretty |just )?(?:good|right|fine|well|correct|better|clear|set)\b"),
    Cue("approval", "praise", r"^(?:(?:much|even|far|way|a lot|so much) )?better(?: now| already)?$"),
    Cue("approval", "praise", r"^(?:(?:very|really|so|oh|ah|ok|okay|and|yes|yeah|all|pretty) )*(?:good|fine|correct|right|exactly|yes|yep|yeah|yup|ok|okay|k|kk|sure|agreed|indeed|absolutely|definitely|bingo|done|solved|fixed|cool|sweet|alright|all right|got it|understood|noted|true|precisely|of course|helpful|useful|clear)(?: (?:then|now|cool|thanks|i see|enough|man|mate|sir|ok|okay))?$"),
    Cue("it works", "praise", r"\b(?:it|that|this|they|everything|which|tests|all|code|the \w+)(?: (?:now|finally|really|all|just|actually|totally|already))* (?:works?|worked|working|compiles|compiled|passe[sd]|pass|runs|ran|builds|did (?:it|the trick|the job)|helped|helps|solved|fixed|do(?:es)? the trick)\b"),
    Cue("it works", "praise", r"^(?:(?:now|finally) )?(?:works|worked|working|fixed|solved)(?: now| fine| great| perfectly)?$"),
    Cue("praise", "praise", r"\b(?:exactly|just|precisely) (?:what|the \w+|as) i\b|\bexactly$|\bi (?:really |do |just |absolutely |also )*(?:like|love|liked|loved|enjoyed) (?:it|this|that|how|the|your|these)\b|\bmakes? (?:perfect |total |much |more |a lot of )?sense\b|\bsaved? my (?:day|life)\b|\b(?:get|understand) it now\b|\b(?:very|so|really|super|extremely|most|quite) (?:helpful|useful|clear|good|kind|interesting)\b|\byou(?:'re| are) (?:a )?(?:star|legend|lifesaver|genius|great|best)\b|^(?:i see|aha|wow|yay|hooray|haha|lol)$|\bhappy with (?:it|this|that)\b|\bthat'?s (?:all|it|the one)\b"),
    Cue("praise", "praise", "[\U0001f44d\U0001f64f\U0001f60a\U0001f389\U0001f44f\U0001f4af\u2705\U0001f970\U0001f60d\U0001f525\U0001f44c\U0001f642\U0001f600\u2764]"),
    # --- the task moves on
    Cue("moves on", "moves_on", r"^(?:(?:ok|okay|please|yes|and|now|then|just) )*(?:continue|go on|proceed|go ahead|carry on|keep going|next|do it|moving on|move on|on to the next)\b(?! (?:like this|wrong))"),
    Cue("moves on", "moves_on", r"\bnext (?:question|one|step|task|problem|exercise|item|topic|chapter|part)\b"),
    Cue("moves on", "moves_on", r"^(?:(?:ok|okay|please|yes|and|great|now|then|could you|can you) )*(?:append|save|commit|submit|send|store|export|publish|merge|push|deploy|ship) (?:it|this|that|them|everything)\b"),
    Cue("moves on", "moves_on", r"^now (?:let's|please|that|append|save|do the (?:next|second|third|same)|on to|write (?:it|this) to|the (?:next|second|third))\b"),
    Cue("task done", "moves_on", r"^[a-z]{3,20}_done$"),
)
# fmt: on
