"""The field's queries in SQL, for Spark and for Flink; a dialect says how windows and texts are
written.

Every query gives the answer of the case of the same name: rows, or for q0 and q1 their number and
weighted sum (benchmarks/field/case.py, `mixed`). `nexmark q4` gives sums and numbers, of which
averages are quotients.
"""

WEIGHED = (
    "CAST(auction + 3 * bidder + 7 * {} + 11 * `time` + 13 * CHAR_LENGTH(extra) AS DECIMAL(28, 3))"
)
# Names in back quotes: Flink's SQL reserves some of them
COLUMNS = {
    "person": "`id` BIGINT, `name` STRING, `email` STRING, `card` STRING, `city` STRING, `state` STRING, `time` BIGINT, "
    "`extra` STRING",
    "auction": "`id` BIGINT, `item` STRING, `description` STRING, `initial` BIGINT, `reserve` BIGINT, `time` BIGINT, "
    "`expires` BIGINT, `seller` BIGINT, `category` BIGINT, `extra` STRING",
    "bid": "`auction` BIGINT, `bidder` BIGINT, `price` BIGINT, `channel` STRING, `url` STRING, `time` BIGINT, `extra` STRING",
}
_Q3 = (
    "SELECT P.name, P.city, P.`state`, A.id FROM auction A JOIN person P ON A.seller = P.id "
    "WHERE A.category = 10 AND P.`state` IN ('OR', 'ID', 'CA')"
)
_Q4 = (
    "SELECT category, SUM(price) AS total, COUNT(*) AS n FROM (SELECT A.id, A.category, MAX(B.price) AS price "
    "FROM auction A JOIN bid B ON A.id = B.auction WHERE B.`time` BETWEEN A.`time` AND A.expires GROUP BY A.id, A.category) Q "
    "GROUP BY category"
)
SIMPLE = {
    "nexmark q0": f"SELECT COUNT(*), SUM({WEIGHED.format('price')}) FROM bid",
    "nexmark q1": f"SELECT COUNT(*), SUM({WEIGHED.format('0.908 * price')}) FROM bid",
    "nexmark q2": "SELECT auction, price FROM bid WHERE MOD(auction, 123) = 0",
    "nexmark q3": _Q3,
    "nexmark q4": _Q4,
}
_SPARK_COUNTS = (
    "SELECT auction, COUNT(*) AS num, window.end AS w FROM bid "
    "GROUP BY auction, window(rowtime, '10 seconds', '2 seconds')"
)
_SPARK_LAST = "unix_millis({}) - 1"
_SPARK_HOTTEST = (
    f"SELECT c.auction, c.num, {_SPARK_LAST.format('c.w')} FROM c "
    "JOIN (SELECT MAX(num) AS most, w FROM c GROUP BY w) m ON c.w = m.w AND c.num = m.most"
)
SPARK = {
    **SIMPLE,
    "nexmark q5": f"WITH c AS ({_SPARK_COUNTS}) {_SPARK_HOTTEST}",
    "nexmark q7": "SELECT B.auction, B.bidder, B.price, B.`time`, B.extra, m.w * 10000 + 9999 FROM bid B "
    "JOIN (SELECT MAX(price) AS most, `time` DIV 10000 AS w FROM bid GROUP BY `time` DIV 10000) m "
    "ON B.price = m.most AND B.`time` DIV 10000 = m.w",
    "nexmark q8": "SELECT DISTINCT P.id, P.name, P.`time` DIV 10000 * 10000 FROM person P JOIN auction A "
    "ON P.id = A.seller AND P.`time` DIV 10000 = A.`time` DIV 10000",
    "yahoo": f"SELECT c.campaign, COUNT(*), {_SPARK_LAST.format('window.end')} FROM ad JOIN campaign c ON ad.ad_id = c.ad "
    "WHERE event_type = 'view' GROUP BY c.campaign, window(rowtime, '10 seconds')",
    "word count": "SELECT word, COUNT(*) FROM (SELECT explode(split(text, ' ')) AS word FROM text) GROUP BY word",
    "id bolt": "SELECT 'tuples', COUNT(*) FROM text",
}
# Structured Streaming: these give what has been seen so far (complete mode), q2 rows, joins rows.
# q4 and q7 join with what an aggregate says: they would wait for the end of a window that a bounded
# input never passes
STREAMED = {
    "nexmark q0": "complete",
    "nexmark q1": "complete",
    "nexmark q2": "append",
    "nexmark q3": "append",
    "nexmark q5": "complete",
    "nexmark q8": "append",
    "yahoo": "complete",
    "word count": "complete",
    "id bolt": "complete",
}
# The part of a query that is a stream, where that is not the whole of it; and what follows on each
# micro-batch's result `c`
STREAM_PART = {
    "nexmark q5": _SPARK_COUNTS,
    "nexmark q8": "SELECT P.id, P.name, unix_millis(P.w.start) FROM (SELECT id, name, window(rowtime, '10 seconds') AS w "
    "FROM person) P JOIN (SELECT seller, window(rowtime, '10 seconds') AS w FROM auction) A ON P.id = A.seller AND P.w = A.w",
}
BATCH_PART = {"nexmark q5": _SPARK_HOTTEST}
_LAST = "TIMESTAMPDIFF(SECOND, TIMESTAMP '1970-01-01 00:00:00', {}) * CAST(1000 AS BIGINT) - 1"
_TUMBLE = "TABLE(TUMBLE(TABLE {}, DESCRIPTOR(rowtime), INTERVAL '10' SECOND))"
_HOP = "TABLE(HOP(TABLE bid, DESCRIPTOR(rowtime), INTERVAL '2' SECOND, INTERVAL '10' SECOND))"
_COUNTS = f"SELECT auction, COUNT(*) AS num, window_start, window_end FROM {_HOP} GROUP BY auction, window_start, window_end"
FLINK = {
    **SIMPLE,
    "nexmark q5": f"SELECT C.auction, C.num, {_LAST.format('C.window_end')} FROM ({_COUNTS}) C JOIN (SELECT MAX(num) AS most, "
    f"window_start, window_end FROM ({_COUNTS}) GROUP BY window_start, window_end) M "
    "ON C.window_start = M.window_start AND C.window_end = M.window_end AND C.num = M.most",
    "nexmark q7": f"SELECT B.auction, B.bidder, B.price, B.`time`, B.extra, M.last_ms FROM bid B JOIN (SELECT MAX(price) AS most, "
    f"{_LAST.format('window_end')} AS last_ms FROM {_TUMBLE.format('bid')} GROUP BY window_start, window_end) M "
    "ON B.price = M.most AND B.`time` > M.last_ms - 10000 AND B.`time` <= M.last_ms",
    "nexmark q8": f"SELECT P.id, P.name, {_LAST.format('P.window_start')} + 1 FROM (SELECT id, name, window_start, window_end FROM "
    f"{_TUMBLE.format('person')} GROUP BY id, name, window_start, window_end) P JOIN (SELECT seller, window_start, window_end FROM "
    f"{_TUMBLE.format('auction')} GROUP BY seller, window_start, window_end) A "
    "ON P.id = A.seller AND P.window_start = A.window_start AND P.window_end = A.window_end",
    "yahoo": f"SELECT campaign, COUNT(*), {_LAST.format('window_end')} FROM TABLE(TUMBLE(TABLE ad_view, DESCRIPTOR(rowtime), "
    "INTERVAL '10' SECOND)) JOIN campaign ON ad_id = ad GROUP BY campaign, window_start, window_end",
}


def answer_of(name, rows):
    """Return rows of a query, as (tuple, times) pairs, in the form of the case's answer."""
    answer = {}
    for row, times in rows:
        if name in ("nexmark q0", "nexmark q1"):
            answer = {"rows": row[0], "sum": int(row[1] * (1000 if name.endswith("1") else 1))}
        elif name == "nexmark q4":
            answer[row[0], "sum"], answer[row[0], "n"] = int(row[1]), row[2]
        elif name == "nexmark q8":
            answer[row] = 1
        elif name in ("word count", "id bolt"):
            answer[row[0]] = row[1]
        else:
            answer[row] = answer.get(row, 0) + times
    return answer
