"""The words that the contradiction check reads by: what turns a meaning round, and which words are opposites.

`NEGATORS` turn what follows them round, each once: "don't skip the units" is a wish for units. `AXES` puts opposites
on one axis: "too long" and "make it shorter" point the same way.
"""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


NEGATORS = _words("""no not never don't dont doesn't didn't isn't aren't wasn't won't can't cannot couldn't shouldn't haven't hasn't without avoid
    avoids avoiding stop stops stopping skip skips skipping skipped drop omit omits omitted omitting remove removes removing delete
    exclude excluding refrain ignore ignored forget forgot forgetting missed less fewer reduce reduces reducing cut limit
    minimise minimize too hate dislike nothing neither nor lose ditch ban tired sick unwanted few little replace convert
    enough hardly""")
CHANGES = _words("less fewer reduce reduces reducing cut limit minimise minimize replace convert")
UNTIL = _words("to with by into")  # ends what a change turned round: "replace the list with prose"
NEGATING_PAIRS = frozenset(
    {("instead", "of"), ("rather", "than"), ("leave", "out"), ("left", "out"), ("rid", "of"), ("get", "rid")}
)
# After "you" these are complaints about what the reply did: the user wants the opposite.
COMPLAINTS = _words("""used wrote gave put added included answered made said keep kept always still again forgot missed skipped omitted left
    didn't did haven't hadn't never ignored failed mixed started ended were are""")
VERBS = _words("""use using used write writing give giving make making try do doing add adding include including answer reply respond put
    keep provide show tell explain want need start begin end say return say mention have get be is it's i please
    just only""")
FUNCTION = _words("""a an the and or but so as at by for from in into of on onto to with than then that this these those there it its it's
    i i'd i'm me my we us our you your you're yours he she they them their is are was were be been being am do does did doing done
    have has had having can could may might must shall should will would if when while because since how what which who whom
    whose where why all any each every some such own same other another more most much many very quite really just only
    also even ever still again always please thanks thank ok okay yes well now next time here let lets let's like instead
    answer answers reply replies respond response responses assistant user text thing things way one ones make makes use uses
    using used write writes writing give gives giving want wants wanted need needs try tries keep put add include includes
    including provide tell say says said ask asked get got be sure ensure about out up down over back off
    future question request something anything everything rather style format version replace convert turn change""")

# axis -> (words of one end, words of the other). Chinese ones are matched as substrings.
AXES: dict[str, tuple[str, str]] = {
    "length": (
        "long longer lengthy lengthier verbose wordy lengthen expand elaborate rambling 长 详细 展开 啰嗦 冗长",
        "short shorter shorten brief briefly briefer concise concisely terse succinct condense condensed compact trim "
        "短 简洁 精简 简练 一句话",
    ),
    "formality": (
        "formal formally professional official academic 正式 书面",
        "informal informally casual casually relaxed colloquial chatty 随意 口语 轻松",
    ),
    "simplicity": (
        "simple simpler simply simplify simplified plain easy easier 简单 通俗 易懂",
        "complex complicated technical advanced difficult harder jargon 复杂 专业 难懂",
    ),
    "temperature": ("celsius centigrade 摄氏", "fahrenheit 华氏"),
    "units": (
        "metric kilometers kilometres km meters metres kilograms 公制 公里",
        "imperial miles feet inches pounds 英制 英里",
    ),
    "case": ("uppercase capitals capitalized capitalised 大写", "lowercase 小写"),
    "warmth": (
        "friendly friendlier warm warmer kind polite politer 友好 热情 礼貌",
        "cold colder harsh harsher rude ruder stern sterner 冷淡 严厉",
    ),
    "mood": ("serious sober 严肃", "funny funnier humorous joking playful 幽默 搞笑 有趣"),
    "precision": ("specific specifically precise exact concrete 具体 精确", "vague vaguer general rough 笼统 模糊"),
    "order": ("ascending 升序", "descending 降序"),
    "bound": ("atmost", "atleast"),  # see BOUNDS
    "sequence": ("before", "after"),
    "place": ("first", "last"),
    "tense": ("past 过去时", "present 现在时"),
    "voice": ("active 主动", "passive 被动"),
    "side": ("left 左", "right 右"),
    "pace": ("fast faster quick quicker quickly 快", "slow slower slowly 慢"),
}  # fmt: skip
# What a bound is spelt as, and the word that the axis knows it by.
BOUNDS: dict[str, str] = {
    "atmost": r"\b(?:at most|no more than|not more than|up to|maximum of)\b|最多|至多|不超过|不多于",
    "atleast": r"\b(?:at least|no less than|not less than|no fewer than|minimum of)\b|至少|最少|不少于",
}
# Names of which a reply is asked for in one; a hint that names another one is wrong.
NAMES: dict[str, str] = {
    "english": "english 英文 英语", "chinese": "chinese mandarin 中文 汉语", "french": "french 法语 法文",
    "german": "german 德语 德文", "spanish": "spanish 西班牙语", "italian": "italian 意大利语",
    "portuguese": "portuguese 葡萄牙语", "japanese": "japanese 日语 日文", "korean": "korean 韩语",
    "russian": "russian 俄语", "arabic": "arabic 阿拉伯语", "python": "python", "javascript": "javascript js",
    "typescript": "typescript", "java": "java", "rust": "rust", "ruby": "ruby", "perl": "perl", "bash": "bash",
    "json": "json", "yaml": "yaml", "xml": "xml", "csv": "csv", "markdown": "markdown", "html": "html",
}  # fmt: skip
NUMBERS: dict[str, str] = {
    "two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9", "ten": "10",
    "twelve": "12", "twenty": "20", "single": "1", "second": "2nd",
    "third": "3rd", "fourth": "4th", "fifth": "5th", "sixth": "6th", "seventh": "7th", "eighth": "8th", "ninth": "9th",
    "tenth": "10th", "once": "1", "twice": "2",
    "一": "1", "二": "2", "两": "2", "三": "3", "四": "4", "五": "5", "六": "6", "七": "7", "八": "8", "九": "9", "十": "10",
}  # fmt: skip
ORDINALS: dict[str, str] = {
    "2": "2nd", "3": "3rd", "4": "4th", "5": "5th", "6": "6th", "7": "7th", "8": "8th", "9": "9th", "10": "10th",
}  # fmt: skip
COUNTED = _words(
    "sentence sentences word words line lines paragraph paragraphs step steps item items point points example examples"
)

NEGATORS_ZH = (
    "不需要", "没必要", "不希望", "不喜欢", "不想要", "不应该", "不要", "不用", "不能", "不想", "不是", "不够", "别再", "别", "勿", "无需", "避免", "去掉", "去除", "删掉", "删除",
    "省略", "跳过", "停止", "禁止", "而不是", "代替", "太", "过于", "少用", "少", "没有", "没", "不", "忘了", "忘记", "漏掉", "漏了", "缺少",
)  # fmt: skip
RESUME_ZH = ("而是", "改用", "改成", "换成", "要", "请用", "请", "应该", "使用", "用", "而要", "直接")
COMPLAINTS_ZH = ("你用了", "你写了", "你给了", "你加了", "你说了", "你一直", "你总是")
OMISSIONS_ZH = ("你漏掉", "你漏了", "你忘了", "你忘记", "你没有", "你没", "你少了")  # what follows was wanted
FUNCTION_ZH = frozenset(
    "的了吗呢吧啊呀么着过地得我你他她它们这那个些是在有和与或就都也还再又很更点下把被让给对从到为以及并且但而请要用说写答复回问题应该可以能会一"
)
