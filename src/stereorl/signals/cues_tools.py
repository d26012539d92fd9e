"""How tools say that they failed or succeeded. Tables only: add a line to teach the judge another tool.

Patterns are tried on single lines (colours stripped, at most 600 characters), and should be anchored where they can.
"""

from __future__ import annotations

from typing import NamedTuple


class Pattern(NamedTuple):
    """`name` appears in the vote's reason; `regex` is searched in one line."""

    name: str
    regex: str


class Summary(NamedTuple):
    """A test runner's last line. It failed when any number in a `failed` match is above 0, passed on `passed`."""

    name: str
    line: str
    failed: str
    passed: str


# fmt: off
# The exit status, looked for in the first and the last lines only: that is where harnesses put it.
EXIT_STATUS: tuple[str, ...] = (
    r"^\W{0,3}(?:(?:the )?(?:process|command|program|script|task|job)\b.{0,40}?)?\b(?:exit(?:ed)?|return(?:ed)?|finished|terminated|completed)"
    r"(?:[ _-]?(?:code|status|value))?\W{0,3}(?:with )?(?:(?:exit |return |error |non-?zero )?(?:code|status)[: =]{1,3})?(-?\d{1,5})\W{0,3}$",
    r"<(?:returncode|exit_?code|exit_?status|return_?code)>\s{0,3}(-?\d{1,5})\s{0,3}</",
    r"^\W{0,3}(?:rc|\$\?|return ?code|exit ?code|exit ?status)\s{0,2}[:=]\s{0,2}(-?\d{1,5})\W{0,3}$",
    r"^退出(?:码|代码|状态)?[:： ]{0,2}(-?\d{1,5})$",
)

SUMMARIES: tuple[Summary, ...] = (
    Summary("pytest", r"^=*\s*(?:\d+ (?:failed|passed|skipped|errors?|xfailed|xpassed|deselected|warnings?)(?:, |\b)\s?)+.*\bin [\d.]+ ?s", r"(\d+) (?:failed|errors?)\b", r"\d+ passed"),
    Summary("unittest", r"^(?:FAILED \(|OK(?: \(|$))", r"(?:failures|errors|unexpected successes)=(\d+)", r"^OK"),
    Summary("cargo test", r"^test result: ", r"(\d+) failed", r"^test result: ok"),
    Summary("jest / vitest", r"^\s*(?:Tests|Test Files|Test Suites):?\s+.*\b(?:passed|failed|total)\b", r"(\d+) failed", r"\d+ passed"),
    Summary("mocha", r"^\s*\d+ (?:passing|failing)\b", r"(\d+) failing", r"\d+ passing"),
    Summary("go test", r"^(?:FAIL\b|--- FAIL|ok  ?\s*\t?\S+\s+(?:[\d.]+s|\(cached\))|PASS$)", r"^(?:FAIL|--- FAIL)", r"^(?:ok|PASS)"),
    Summary("junit / maven", r"^\W*(?:\[\w+\] )?Tests run: \d+", r"(?:Failures|Errors): (\d+)", r"Tests run: [1-9]"),
    Summary("rspec", r"^\d+ examples?, \d+ failures?", r"(\d+) failures?", r"\b0 failures"),
    Summary("ctest", r"^\d+% tests passed, \d+ tests? failed", r"(\d+) tests? failed", r"^100%"),
    Summary("tap", r"^# (?:fail|pass) +\d+", r"# fail +(\d+)", r"# pass +[1-9]"),
    Summary("counted", r"^\W{0,4}(?:\d+ (?:tests?|checks?|specs?) )?(?:\d+ (?:failed|passed|failures?|errors?)(?:, | and |; |\.|$)){1,4}", r"(\d+) (?:failed|failures?|errors?)", r"\b[1-9]\d* passed"),
    Summary("counted", r"^\W{0,4}(?:all )?(?:\d+ )?tests? (?:have )?(?:all )?(?:passed|failed)\b", r"tests? (?:have )?failed", r"passed"),
)

# Lines that say failure whatever the exit status (an exit status may be that of a pipe's last command).
HARD_FAILURES: tuple[Pattern, ...] = (
    Pattern("traceback", r"^\s*Traceback \(most recent call last\)"),
    Pattern("go panic", r"^(?:panic: |fatal error: |goroutine \d+ \[running\])"),
    Pattern("rust panic", r"^thread '[^']{0,60}' (?:\(\d+\) )?panicked at"),
    Pattern("java exception", r'^Exception in thread "'),
    Pattern("crash", r"^(?:Segmentation fault|Bus error|Aborted|Illegal instruction|Killed|core dumped)\b|\(core dumped\)"),
    Pattern("compiler error", r"^\S{1,200}[:(]\d+(?:[:,]\d+)?\)?:? (?:fatal )?error\b"),
    Pattern("rust compiler error", r"^error(?:\[E\d{4}\])?: (?:aborting|could not compile|.{0,200}$)"),
    Pattern("command not found", r"\bcommand not found\b|^'[^']{1,60}' is not recognized as an internal or external command"),
    Pattern("make error", r"^make(?:\[\d+\])?: \*\*\* "),
)

FAILURES: tuple[Pattern, ...] = (
    Pattern("exception", r"^(?:E\s{3})?(?:\[\w+\] )?(?:Uncaught |Unhandled |Caused by: )?(?:[a-z_][\w$]{0,40}\.){0,8}[A-Z]\w{0,60}(?:Error|Exception|Interrupt|Failure)(?:\s\[\w+\])?(?::|$)"),
    Pattern("error line", r"(?i)^\W{0,4}(?:\w[\w.+-]{0,30}: )?(?:(?:fatal|critical|runtime|internal|unexpected|syntax|type|build|execution|tool|validation|parse) )?(?:error|fatal|failure|ERR!|panic)(?: \w{1,20})?\s?[:!](?!\s{0,3}(?:0|none|null|no)\b)"),
    Pattern("error line", r"^(?:npm|pnpm|yarn) (?:ERR!|error)|^E: |^FATAL\b|^ERROR\b|^FAILED?\b|\bFATAL: |^\[(?:ERROR|FATAL)\]|^(?:BUILD|COMPILATION) (?:FAILED|FAILURE|ERROR)|^error TS\d+|^✗|^❌"),
    Pattern("http error", r"\bHTTP(?:/\d(?:\.\d)?)? ?(?:error |status |code )?[:=]? ?([45]\d\d)\b"),
    Pattern("http error", r"^\W{0,3}(?:(?:status|response|error)(?:[ _]?code)?[:= ]{1,3})?[45]\d\d[: ]{1,2}(?:Bad Request|Unauthorized|Payment|Forbidden|Not Found|Method Not|Conflict|Gone|Unprocessable|Too Many|Internal Server|Not Implemented|Bad Gateway|Service|Gateway|Client Error|Server Error|Request Timeout)"),
    Pattern("http error", r"\bstatus(?:[ _]?code)?[:= ]{1,3}(?:code )?[45]\d\d\b|\bclient error '?[45]\d\d|\bserver error '?[45]\d\d"),
    Pattern("no such file", r"(?i)\b[Nn]o such \w+|^(?=.{1,200}$).*\b(?:not found|does not exist|doesn't exist)\b|\b(?:cannot|can't|could not) (?:find|open|access|stat|read|create|remove|connect|resolve|load|import|locate|be (?:found|opened|loaded))\b|^(?:file|path|module|package|table|key|user|page|element|resource|record|tool|function)\b.{0,80}\b(?:not found|does not exist|doesn't exist)\b"),
    Pattern("counted errors", r"\b[1-9]\d{0,6} errors?\b(?! (?:fixed|corrected|resolved))"),
    Pattern("denied", r"(?i)\b[Pp]ermission denied\b|\b[Aa]ccess (?:is )?denied\b|\b[Oo]peration not permitted\b|\b(?:[Aa]uthentication|[Aa]uthorization|[Ll]ogin) failed\b|^Unauthorized\b|^Forbidden\b"),
    Pattern("connection", r"(?i)\b[Cc]onnection (?:refused|reset|timed out|aborted|closed unexpectedly)\b|\bCould not resolve host\b|^(?:curl|wget|ssh|scp|rsync): \(?\d*\)?\s?\S|\bName or service not known\b|\bNetwork is unreachable\b"),
    Pattern("timeout", r"(?i)\b(?:timed? ?out|TimeoutExpired)\b|\btimeout (?:of|after|exceeded)\b|\bdeadline exceeded\b"),
    Pattern("resources", r"(?i)\b(?:[Nn]o space left on device|[Oo]ut of memory|MemoryError|OOM[- ]?[Kk]illed|[Qq]uota exceeded|[Rr]ate limit(?:ed| exceeded| reached)|[Tt]oo many requests)\b"),
    Pattern("invalid call", r"(?i)^(?:invalid|missing|unknown|unrecognized|unsupported|malformed|unexpected) (?:\w+ ){0,3}(?:arguments?|parameters?|options?|inputs?|json|tool|function|values?|tokens?|command|request|flag|key)\b|^usage: |\bis required\b.{0,20}$"),
    Pattern("refused", r"(?i)^(?:failed to|unable to|could not|cannot|couldn't|can't|command failed|execution failed|request failed|operation failed|the (?:command|tool|operation|request) failed|tool (?:call )?failed|Aborting\b|Abort(?:ed)?\b|merge conflict|CONFLICT \()"),
    Pattern("chinese error", r"^(?:错误|出错|失败|异常|未找到|找不到|权限不足|拒绝访问|超时|请求失败|执行失败|操作失败|命令未找到)|(?:执行|运行|请求|连接|编译|测试|操作|调用)(?:失败|超时|出错|错误)"),
)

SUCCESSES: tuple[Pattern, ...] = (
    Pattern("success", r"\b[Ss]uccess(?:ful|fully)?\b|\bBUILD SUCCESS\w*|\bSUCCEEDED\b|^\W{0,3}(?:ok|done|passed|completed|success)\W{0,3}$"),
    Pattern("no errors", r"\b(?:0|[Nn]o) (?:errors?|issues|problems|failures|vulnerabilities)\b(?: found)?"),
    Pattern("made", r"\b(?:created|written|saved|updated|sent|installed|deleted|uploaded|downloaded|completed|committed|scheduled|appended|merged|applied)\b"),
    Pattern("compiled", r"^\s*Finished\b|^[Cc]ompiled\b|^Build complete|\bup to date\b|^HTTP/\d(?:\.\d)? 2\d\d"),
    Pattern("chinese success", r"成功|已(?:完成|保存|创建|发送|写入|更新|安装)|^完成"),
)

# Nothing came back, which is neither good nor bad.
EMPTY_RESULTS = (
    r"^\W{0,3}(?:(?:there (?:are|were) )?(?:no|0|zero) (?:\w+ )?(?:results?|match(?:es)?|records?|items?|entries|data|output|files?|rows?|hits?)"
    r"(?: (?:were |was )?(?:found|returned))?(?: for .{0,100})?|nothing found|not found|empty|none|null|undefined|nan|n/a|\[\]|\{\}|no output|\(empty\)|"
    r"没有(?:找到|搜索到)?(?:任何|相关)?(?:结果|数据|内容)|无结果|未找到(?:相关)?结果)\W{0,3}$"
)

# Tools that return other people's text: only their envelope can say that they failed, never what the text says.
READERS = (
    r"(?:^|[_.\-/])(?:read|cat|fetch|browse|browser|search|get|view|open|grep|find|web|list|query|retrieve|lookup|load|show|"
    r"http|download|scrape|crawl|wiki\w*|news|mail|inbox|rag|recall|memory)(?:$|[_.\-/])"
)
READER_COMMANDS = r"^\s*(?:sudo |cd \S+ && )?(?:cat|less|more|head|tail|grep|rg|awk|sed -n|curl|wget|git (?:log|show|diff|blame)|find|ls|tree|journalctl|dmesg|docker logs|kubectl logs)\b"

JSON_ERROR_KEYS = ("error", "errors", "exception", "err", "errormessage", "error_message", "fault")
JSON_ERROR_FLAGS = ("iserror", "is_error", "failed", "has_error", "haserror", "timed_out", "timedout")
JSON_OK_KEYS = ("ok", "success", "succeeded", "successful", "passed", "completed")
JSON_EXIT_KEYS = (
    "exit_code",
    "exitcode",
    "returncode",
    "return_code",
    "exit_status",
    "exitstatus",
    "rc",
    "exit",
)
JSON_STATUS_KEYS = (
    "status",
    "statuscode",
    "status_code",
    "code",
    "http_status",
    "state",
    "result",
    "outcome",
    "type",
)
JSON_STATUS_BAD = (
    "error",
    "failed",
    "failure",
    "fail",
    "timeout",
    "timed_out",
    "denied",
    "rejected",
    "forbidden",
    "unauthorized",
    "invalid",
    "aborted",
    "exception",
)
JSON_STATUS_GOOD = (
    "ok",
    "success",
    "succeeded",
    "passed",
    "completed",
    "done",
    "created",
    "accepted",
    "sent",
    "successful",
)
JSON_TEXT_KEYS = ("output", "stdout", "result", "content", "text", "message", "observation", "body", "logs")
# fmt: on
