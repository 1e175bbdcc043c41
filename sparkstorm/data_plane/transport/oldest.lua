-- Owns one look at all that waits, at one moment: nothing can move from where it was not seen yet to where it was.
-- Keys it reads: {p}:low, {p}:backlog, {p}:task:*, {p}:passed, {p}:freed. ARGV: a floor in ms, then tasks to look at though they have no backlog.
-- Answers the birth of the oldest root that waits ('' for none), or of any that is not younger than the floor.
local p, floor = KEYS[1], tonumber(ARGV[1])
local oldest

local function note(ms)
  if ms and (not oldest or ms < oldest) then
    oldest = ms
  end
end

local function look(task, from, count)
  local entries = redis.call('XRANGE', p .. ':task:' .. task, from, '+', 'COUNT', count)
  for _, entry in ipairs(entries) do
    local data = entry[2][2]
    -- 'SF' and VERSION of data_plane/transport/frames.py; anything else is for its owner's quarantine
    if #data >= 12 and string.sub(data, 1, 3) == 'SF\4' then
      note((struct.unpack('<i8', data, 5)))
    end
  end
  return entries
end

local function is_found()
  return oldest and oldest <= floor
end

for _, low in ipairs(redis.call('HVALS', p .. ':low')) do
  local ms = tonumber(low) or 0  -- what is no number says nothing
  if ms > 0 then
    note(ms)
  end
end
local size_by_task, tasks = {}, {}
for i = 2, #ARGV do
  size_by_task[ARGV[i]] = 0
end
local backlog = redis.call('HGETALL', p .. ':backlog')
for i = 1, #backlog, 2 do
  local size = tonumber(backlog[i + 1]) or 0
  if size > 0 then
    size_by_task[backlog[i]] = size
  end
end
-- With cells: what has just been consumed may be on its way past this look, so it counts until it is freed. The newest entry that
-- was freed stays (pass.lua), and waits no more.
local done = {}
local freed = redis.call('HGETALL', p .. ':freed')
for i = 1, #freed, 2 do
  done[freed[i]] = '(' .. freed[i + 1]
end
local passed = redis.call('HGETALL', p .. ':passed')
for i = 1, #passed, 2 do
  if done[passed[i]] ~= '(' .. passed[i + 1] then
    size_by_task[passed[i]] = size_by_task[passed[i]] or 0
  end
end
for task in pairs(size_by_task) do
  tasks[#tasks + 1] = task
end
-- short streams first: what is found there spares the long ones
table.sort(tasks, function(one, other)
  local a, b = size_by_task[one], size_by_task[other]
  return a < b or (a == b and one < other)
end)
for _, task in ipairs(tasks) do
  look(task, done[task] or '-', 1)
end
for _, task in ipairs(tasks) do
  local from = done[task] or '-'
  repeat
    if is_found() then
      break
    end
    local entries = look(task, from, 64)
    from = #entries == 64 and '(' .. entries[64][1]
  until not from
end
return {oldest and string.format('%.0f', oldest) or ''}
