-- Owns the change of owners. Key it writes: {p}:fence. ARGV: k tasks, then their k tokens.
-- Writes every token before anything is read by the new owner, or none at all when one of them is older than the stored one.
local p = KEYS[1]
local k = #ARGV / 2
for i = 1, k do
  local stored = tonumber(redis.call('HGET', p .. ':fence', ARGV[i]) or '0')
  if stored > tonumber(ARGV[k + i]) then
    return {'FENCED', ARGV[i], tostring(stored)}
  end
end
for i = 1, k do
  redis.call('HSET', p .. ':fence', ARGV[i], ARGV[k + i])
end
return {'OK'}
