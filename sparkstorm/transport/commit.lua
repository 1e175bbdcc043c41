-- The one atomic step of an epoch. Keys it reads: {p}:fence (task -> token), {p}:generation, {p}:seq (owner -> n),
-- {p}:steps (begun, ended, at): the first write counts one up, the last writes the number and the server's time down. A half of this that a torn
-- append-only file brings back counts without a number of its own, and so can be told for good.
-- Everything else it writes comes as commands in ARGV, already named by the transport.
-- ARGV: owner, generation, seq, what it is ('grow', 'free': frees at least what it writes, 'ask': only whether seq stands),
--       number of fences k, k tasks, k tokens, number of watched tasks w, w tasks,
--       number of frames e that the owner has in memory and whose presence it doubts, e pairs (stream, id); e is -1
--       on a connection that has proven itself,
--       then each command as its length and its words; ours are COUNT (backlog, prefix of streams, then task, change and whether
--       entries of it were consumed) and STATE (prefix of a task's base, its changes).
-- Answers {'OK', number of the last step, backlog of each watched task}, or {'FENCED'|'ROLLED_BACK'|'HALF', detail}. The same owner and seq again: 'OK'.
local p = KEYS[1]
local owner, generation, seq, mode = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local current = redis.call('GET', p .. ':generation') or '0'
local function number(value, key)
  local found = tonumber(value)
  if not found then
    error('DAMAGED[' .. key .. '][' .. tostring(value) .. ']')
  end
  return found
end

local last = number(redis.call('HGET', p .. ':seq', owner) or '0', p .. ':seq')

-- Redis refuses a script's first write when memory is full; this one (of a key that never exists) it always allows
local function write_though_full()
  redis.call('DEL', p .. ':nothing')
end

local function rolled_back(is_store_behind)
  if is_store_behind and current == generation then
    write_though_full()
    redis.call('INCR', p .. ':generation')
  end
  return {'ROLLED_BACK', current, tostring(last)}
end

-- Change the bytes that wait for many tasks at once; where nothing is left in a stream, nothing waits: frames of strangers,
-- which nobody counted, must not make it wrong.
local function count(first, last)
  local tasks, set = {}, {}
  for i = first + 2, last, 3 do
    tasks[#tasks + 1] = ARGV[i]
  end
  local stored = redis.pcall('HMGET', ARGV[first], unpack(tasks))
  if stored.err then
    return stored
  end
  for i, task in ipairs(tasks) do
    local waiting = tonumber(stored[i] or '0')
    if not waiting then
      return {err = 'ERR the bytes that wait for task ' .. task .. ' are ' .. stored[i]}
    end
    waiting = waiting + tonumber(ARGV[first + 3 * i])
    if ARGV[first + 3 * i + 1] == '1' then
      local entries = redis.pcall('XLEN', ARGV[first + 1] .. task)
      if type(entries) == 'table' then
        return entries
      elseif entries == 0 then
        waiting = 0
      end
    end
    set[2 * i - 1], set[2 * i] = task, string.format('%.0f', waiting)
  end
  return redis.pcall('HSET', ARGV[first], unpack(set))
end

-- Write a task's base: of each key its range in 2 bytes, its length and that of its value plus one in 4 each (0: the key goes), key
-- and value. As one word, because packing a command per key would cost more than the write.
local function state(prefix, words)
  local at = 1
  while at <= #words do
    local range, size, value_size = struct.unpack('<I2I4I4', words, at)
    local key, name, result = prefix .. ':' .. range, string.sub(words, at + 10, at + 9 + size), nil
    at = at + 10 + size
    if value_size > 0 then
      result = redis.pcall('HSET', key, name, string.sub(words, at, at + value_size - 2))
      at = at + value_size - 1
    else
      result = redis.pcall('HDEL', key, name)
    end
    if type(result) == 'table' then
      return result
    end
  end
end

local k = tonumber(ARGV[5])
local at = 6
local stored = k > 0 and redis.call('HMGET', p .. ':fence', unpack(ARGV, at, at + k - 1)) or {}
for i = 1, k do
  local token = ARGV[at + k + i - 1]
  if stored[i] ~= token then
    if stored[i] and number(stored[i], p .. ':fence') < tonumber(token) then
      return rolled_back(true)  -- the store has lost this owner's claim
    end
    return {'FENCED', ARGV[at + i - 1], stored[i] or 'none'}
  end
end
at = at + 2 * k
local w = tonumber(ARGV[at])
local watched = at + 1
at = watched + w
local doubts = tonumber(ARGV[at])
at = at + 1
if doubts >= 0 then
  local begun, ended = unpack(redis.call('HMGET', p .. ':steps', 'begun', 'ended'))
  if begun ~= ended then
    return {'HALF', begun or '0', ended or '0'}
  end
end
if current ~= generation or (last ~= seq and (last ~= seq - 1 or mode == 'ask')) then
  return rolled_back(last < seq)
end
if last == seq - 1 or mode == 'ask' then
  for i = at, at + 2 * doubts - 1, 2 do
    if #redis.call('XRANGE', ARGV[i], ARGV[i + 1], ARGV[i + 1]) == 0 then
      return rolled_back(true)  -- the owner has read a frame that the store has lost since
    end
  end
end
local step
if last == seq - 1 then
  at = at + 2 * math.max(doubts, 0)
  if mode == 'free' then
    write_though_full()
  end
  step = redis.call('HINCRBY', p .. ':steps', 'begun', 1)
  redis.call('HSET', p .. ':seq', owner, ARGV[3])
  local n = #ARGV
  while at <= n do
    local words = tonumber(ARGV[at])
    local result
    if ARGV[at + 1] == 'COUNT' then
      result = count(at + 2, at + words)
    elseif ARGV[at + 1] == 'STATE' then
      result = state(ARGV[at + 2], ARGV[at + 3])
    else
      result = redis.pcall(unpack(ARGV, at + 1, at + words))
    end
    if type(result) == 'table' and result.err then
      -- half of the commit was applied and cannot be taken back: no owner may build on it
      redis.call('SET', p .. ':generation', 'broken by ' .. ARGV[at + 1] .. ' ' .. ARGV[at + 2] .. ': ' .. result.err)
      redis.call('HSET', p .. ':steps', 'ended', step)
      return result
    end
    at = at + words + 1
  end
  redis.call('HSET', p .. ':steps', 'ended', step, 'at', redis.call('TIME')[1])
end
local answer = {'OK', step or redis.call('HGET', p .. ':steps', 'ended') or '0'}
if w > 0 then
  local backlog = redis.call('HMGET', p .. ':backlog', unpack(ARGV, watched, watched + w - 1))
  for i = 1, w do
    answer[i + 2] = backlog[i] or '0'
  end
end
return answer
