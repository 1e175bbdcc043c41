-- What a task in another cell has consumed: its bytes wait no more, and some time later the entries go, all but the newest.
-- Keys it writes: {p}:passed (task -> the newest entry that its receiver is done with), {p}:freed (task -> the newest one up to which
-- entries went; it stays itself), {p}:backlog, {p}:task:<task>.
-- ARGV: of each task its id, the entry up to which the caller knows that bytes were subtracted before, the entry up to which it is done
-- now, the bytes between them, and the entry up to which others may go ('0-0': none).
-- May come twice, late, and from any owner, past or present: the last is a stored cursor.
-- Answers {'OK'}, also when the topology has ended: nothing is done then.
-- The order of the writes: a part of them that a crash brings back leaves entries that are done with, which the next call frees.
local p = KEYS[1]
if redis.call('EXISTS', p .. ':ended') == 1 then
  return {'OK'}
end

local function parts(entry)
  local ms, n = string.match(entry, '^(%d+)-(%d+)$')
  if not ms then
    error('DAMAGED[' .. p .. ':passed or ' .. p .. ':freed][' .. entry .. ']')
  end
  return tonumber(ms), tonumber(n)
end

local function is_before(one, other)
  local a, m = parts(one)
  local b, n = parts(other)
  return a < b or (a == b and m < n)
end

-- 'SF', VERSION and the kinds of data_plane/transport/frames.py: messages of and to ackers were never counted
local function counted(data)
  local kind = #data >= 12 and string.sub(data, 1, 3) == 'SF\4' and string.byte(data, 4)
  return (kind == 2 or kind == 3) and 0 or #data
end

-- A caller that does not know what was freed before it: the bytes are those of the entries.
local function size_of(stream, from, upto)
  local size = 0
  repeat
    local entries = redis.call('XRANGE', stream, '(' .. from, upto, 'COUNT', 64)
    for _, entry in ipairs(entries) do
      size = size + counted(entry[2][2])
    end
    from = #entries == 64 and entries[64][1]
  until not from
  return size
end

redis.call('DEL', p .. ':nothing')  -- a first write that a full Redis allows
for i = 1, #ARGV, 5 do
  local task, since, upto, bytes, free = ARGV[i], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3]), ARGV[i + 4]
  local stream = p .. ':task:' .. task
  local passed = redis.call('HGET', p .. ':passed', task) or '0-0'
  local freed = redis.call('HGET', p .. ':freed', task) or '0-0'
  if is_before(passed, upto) then
    if passed ~= since then
      bytes = size_of(stream, passed, upto)
    end
    redis.call('HSET', p .. ':passed', task, upto)
    local waiting = tonumber(redis.call('HGET', p .. ':backlog', task) or '0') or 0
    -- frames of strangers, which nobody counted, must not make it wrong for ever
    if bytes > waiting or #redis.call('XRANGE', stream, '(' .. upto, '+', 'COUNT', 1) == 0 then
      bytes = waiting
    end
    if bytes > 0 then  -- Redis before 7.2 writes -0, which it takes for no number
      redis.call('HINCRBY', p .. ':backlog', task, -bytes)
    end
  end
  if is_before(freed, free) then
    redis.call('HSET', p .. ':freed', task, free)
    redis.call('XTRIM', stream, 'MINID', '=', free)
  end
end
return {'OK'}
