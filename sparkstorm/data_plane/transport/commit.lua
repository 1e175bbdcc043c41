-- The one atomic step of an epoch. Keys it reads: {p}:fence (task -> token), {p}:generation, {p}:seq (owner -> n, and
-- 'digest ' .. owner -> that of the content of its commit n),
-- {p}:steps (begun, ended, at): the first write counts one up, the last writes the number and the server's time down. A half of this that a torn
-- append-only file brings back counts without a number of its own, and so can be told for good.
-- Everything else it writes comes as commands in ARGV, already named by the transport.
-- ARGV: owner, generation, seq, digest ('': not known), what it is ('grow', 'free': frees at least what it writes, 'ask': only whether seq stands),
--       number of fences k, k tasks, k tokens, number of watched tasks w, w tasks,
--       number of frames e that the owner has in memory and whose presence it doubts, e pairs (stream, id); e is -1
--       on a connection that has proven itself,
--       then each command as its length and its words; ours are COUNT (backlog, prefix of streams, then task, change and whether
--       entries of it were consumed) and STATE (prefix of a task's base, its changes).
-- Answers {'OK', number of the last step, backlog of each watched task}, or {'FENCED'|'ROLLED_BACK'|'SECOND'|'HALF', detail}. The same owner, seq
-- and digest again: 'OK'; with another digest: 'SECOND', a second process goes on as this owner.
-- Valkey spends some 10,000 instructions on a call of a small command, of which an HSET itself takes 2,100, so there are as few calls as can be.
-- A function would be made anew by every commit: what few commits need stands where they need it.
local p, call, pcall = KEYS[1], redis.call, redis.pcall
local owner, generation, seq, digest, mode = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local current = call('GET', p .. ':generation') or '0'
local stored_seq, stored_digest = unpack(call('HMGET', p .. ':seq', owner, 'digest ' .. owner))
stored_seq = stored_seq or '0'
local last = tonumber(stored_seq)
if not last then
  error('DAMAGED[' .. p .. ':seq][' .. stored_seq .. ']')
end

-- 'BEHIND': the store has lost what its owner knows of; 'OTHER': another one has gone on
local refused
local k = tonumber(ARGV[6])
local at = 7
local stored = k > 0 and call('HMGET', p .. ':fence', unpack(ARGV, at, at + k - 1)) or {}
for i = 1, k do
  local token = ARGV[at + k + i - 1]
  if stored[i] ~= token then
    if stored[i] and not tonumber(stored[i]) then
      error('DAMAGED[' .. p .. ':fence][' .. stored[i] .. ']')
    end
    if not stored[i] or tonumber(stored[i]) >= tonumber(token) then
      return {'FENCED', ARGV[at + i - 1], stored[i] or 'none'}
    end
    refused = 'BEHIND'  -- the store has lost this owner's claim
    break
  end
end
at = at + 2 * k
local w = tonumber(ARGV[at])
local watched = at + 1
at = watched + w
local doubts = tonumber(ARGV[at])
at = at + 1
if doubts >= 0 and not refused then
  local begun, ended = unpack(call('HMGET', p .. ':steps', 'begun', 'ended'))
  if begun ~= ended then
    return {'HALF', begun or '0', ended or '0'}
  end
end
local is_new = last == seq - 1
if not refused and (current ~= generation or (last ~= seq and (not is_new or mode == 'ask'))) then
  refused = last < seq and 'BEHIND' or 'OTHER'
end
if not refused and (is_new or mode == 'ask') then
  for i = at, at + 2 * doubts - 1, 2 do
    if #call('XRANGE', ARGV[i], ARGV[i + 1], ARGV[i + 1]) == 0 then
      refused = 'BEHIND'  -- the owner has read a frame that the store has lost since
      break
    end
  end
end
if refused then
  if refused == 'BEHIND' and current == generation then
    -- Redis refuses a script's first write when memory is full; this one (of a key that never exists) it always allows
    call('DEL', p .. ':nothing')
    call('INCR', p .. ':generation')
  end
  return {'ROLLED_BACK', current, tostring(last)}
end

if last == seq and digest ~= '' and stored_digest and stored_digest ~= digest then
  return {'SECOND'}
end

local step
local waits  -- task -> bytes that wait for it; with the first COUNT the watched tasks are read too
if is_new then
  if doubts > 0 then
    at = at + 2 * doubts
  end
  step = pcall('HINCRBY', p .. ':steps', 'begun', 1)
  if type(step) == 'table' and mode == 'free' then
    call('DEL', p .. ':nothing')  -- memory is full, as above
    step = pcall('HINCRBY', p .. ':steps', 'begun', 1)
  end
  if type(step) == 'table' then
    return step  -- nothing is written yet
  end
  call('HSET', p .. ':seq', owner, ARGV[3], 'digest ' .. owner, digest)
  local n = #ARGV
  while at < n do
    local words = tonumber(ARGV[at])
    local name, result = ARGV[at + 1], nil
    if name == 'COUNT' then
      -- Change the bytes that wait for many tasks at once; where nothing is left in a stream, nothing waits: frames of strangers,
      -- which nobody counted, must not make it wrong.
      local backlog, streams = ARGV[at + 2], ARGV[at + 3]
      local asked, set = {}, {}
      for i = at + 4, at + words, 3 do
        asked[#asked + 1] = ARGV[i]
      end
      local changed = #asked
      if not waits then
        for i = watched, watched + w - 1 do
          asked[#asked + 1] = ARGV[i]
        end
      end
      result = pcall('HMGET', backlog, unpack(asked))
      if not result.err then
        local found = result
        result = nil
        waits = waits or {}
        for i = 1, #asked do
          local task = asked[i]
          if i > changed then
            waits[task] = waits[task] or found[i]
          else
            local waiting = tonumber(found[i] or '0')
            if not waiting then
              result = {err = 'ERR the bytes that wait for task ' .. task .. ' are ' .. found[i]}
              break
            end
            waiting = waiting + tonumber(ARGV[at + 2 + 3 * i])
            if waiting ~= 0 and ARGV[at + 3 + 3 * i] == '1' then
              local entries = pcall('XLEN', streams .. task)
              if type(entries) == 'table' then
                result = entries
                break
              elseif entries == 0 then
                waiting = 0
              end
            end
            waiting = waiting == 0 and '0' or string.format('%.0f', waiting)
            waits[task] = waiting
            set[2 * i - 1], set[2 * i] = task, waiting
          end
        end
        result = result or pcall('HSET', backlog, unpack(set))
      end
    elseif name == 'STATE' then
      -- Write a task's base: of each key its range in 2 bytes, its length and that of its value plus one in 4 each (0: the key goes), key
      -- and value. As one word, because packing a command per key would cost more than the write.
      local prefix, changes = ARGV[at + 2] .. ':', ARGV[at + 3]
      local from = 1
      while from <= #changes do
        local range, size, value_size = struct.unpack('<I2I4I4', changes, from)
        local key, field = prefix .. range, string.sub(changes, from + 10, from + 9 + size)
        from = from + 10 + size
        if value_size > 0 then
          result = pcall('HSET', key, field, string.sub(changes, from, from + value_size - 2))
          from = from + value_size - 1
        else
          result = pcall('HDEL', key, field)
        end
        if type(result) == 'table' then
          break
        end
      end
    else
      result = pcall(unpack(ARGV, at + 1, at + words))
    end
    if type(result) == 'table' and result.err then
      -- half of the commit was applied and cannot be taken back: no owner may build on it
      call('SET', p .. ':generation', 'broken by ' .. name .. ' ' .. ARGV[at + 2] .. ': ' .. result.err)
      call('HSET', p .. ':steps', 'ended', step)
      return result
    end
    at = at + words + 1
  end
  call('HSET', p .. ':steps', 'ended', step, 'at', call('TIME')[1])
end
local answer = {'OK', step or call('HGET', p .. ':steps', 'ended') or '0'}
if w > 0 then
  if not waits then
    local found = call('HMGET', p .. ':backlog', unpack(ARGV, watched, watched + w - 1))
    for i = 1, w do
      answer[i + 2] = found[i] or '0'
    end
  else
    for i = 1, w do
      answer[i + 2] = waits[ARGV[watched + i - 1]] or '0'
    end
  end
end
return answer
