-- Keep reservations from expiring. KEYS: the tenant's open reservations. ARGV: the tag, lifetime in ms, ids.
-- Answers MessagePack: those that are not open here.

local open, tag, now = KEYS[1], ARGV[1], clock()
local deadline, gone = now + ARGV[2], {}
hearing(tag, now)
for i = 3, #ARGV do
  if redis.call('ZSCORE', open, ARGV[i]) then
    redis.call('ZADD', open, deadline, ARGV[i])
  else
    gone[#gone + 1] = ARGV[i]
  end
end
return cmsgpack.pack(gone)
