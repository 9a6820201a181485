-- Return what expired reservations of a tenant hold. KEYS: its open reservations. ARGV: the tag, how many at most.
-- Answers how many are open still, negative when some of them are overdue.

local open, tag, now = KEYS[1], ARGV[1], clock()
hearing(tag, now)
local overdue = expire(tag, open, now, tonumber(ARGV[2]))
local left = redis.call('ZCARD', open)
if overdue == 1 then return -left end
return left
