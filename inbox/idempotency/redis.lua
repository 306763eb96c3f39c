-- All actions of a store, each in one step of the server.
-- KEYS[1]: a hash with the fields token, fingerprint and, when done, answer.
-- ARGV: action, token, milliseconds, fingerprint, answer. The time to live ends the lease
-- of a dead owner, and the answer.
local key, action, token, ms = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local found = redis.call('HMGET', key, 'token', 'fingerprint', 'answer')
local owner, fingerprint, answer = found[1], found[2], found[3]

if action == 'begin' then
    if answer then
        return {'done', fingerprint, answer}
    end
    if owner and owner ~= token then
        return {'busy', fingerprint}
    end
    redis.call('HSET', key, 'token', token, 'fingerprint', ARGV[4])
    redis.call('PEXPIRE', key, ms)
    return {'taken'}
end

if owner and owner ~= token then
    return {'lost'}
end
if action == 'finish' then
    redis.call('HSET', key, 'token', token, 'fingerprint', ARGV[4], 'answer', ARGV[5])
    redis.call('PEXPIRE', key, ms)
    return {'ok'}
end
if answer or (action == 'renew' and not owner) then
    return {'lost'}
end
if action == 'release' then
    redis.call('DEL', key)
else
    redis.call('PEXPIRE', key, ms)
end
return {'ok'}
