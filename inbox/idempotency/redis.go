package idempotency

import (
	"context"
	_ "embed" // redis.lua
	"errors"
	"fmt"
	"strings"
	"time"
)

//go:embed redis.lua
var redisLua string

// DefaultPrefix is the default prefix of the keys of [Redis].
const DefaultPrefix = "idempotency:"

// RedisScript runs a Lua script in Redis and returns its answer, a list of texts. A [Redis] always passes the same script. With
// go-redis:
//
//	func(ctx context.Context, script string, keys []string, args ...any) ([]string, error) {
//		return redis.NewScript(script).Run(ctx, client, keys, args...).StringSlice()
//	}
//
// It must return when ctx ends (ContextTimeoutEnabled of go-redis): a Redis that hangs would otherwise hold requests for longer
// than the middleware allows. The text of an error begins with the error code of Redis, as with every client.
type RedisScript func(ctx context.Context, script string, keys []string, args ...any) ([]string, error)

// Redis is a [Store] in Redis: one hash per key, changed by one script, so that each step is atomic. Tests cover a single server.
// No step touches two keys, so sentinels and a cluster should work as well, but are not tested. Create it with [NewRedis].
//
// A crash of Redis loses writes that have not reached its disk or a replica, and eviction loses keys. The request of a lost key
// runs again. Use maxmemory-policy noeviction and appendonly yes, or [Postgres] where that is not enough.
type Redis struct {
	script RedisScript
	prefix string
}

// NewRedis returns a store whose keys begin with prefix; "" is [DefaultPrefix]. Services that share a Redis each have a prefix
// of their own.
func NewRedis(script RedisScript, prefix string) (*Redis, error) {
	if script == nil {
		return nil, errors.New("idempotency: a function that runs scripts in Redis is required")
	}
	if prefix == "" {
		prefix = DefaultPrefix
	}
	return &Redis{script: script, prefix: prefix}, nil
}

// Begin implements [Store].
func (s *Redis) Begin(ctx context.Context, c Claim, lease time.Duration) (Entry, error) {
	reply, err := s.run(ctx, "begin", c, lease, nil)
	if err != nil {
		return Entry{}, fmt.Errorf("redis: take an idempotency key: %w", err)
	}

	switch {
	case reply[0] == "taken":
		return Entry{State: Taken}, nil
	case reply[0] == "busy" && len(reply) == 2:
		return Entry{State: InProgress, Fingerprint: reply[1]}, nil
	case reply[0] == "done" && len(reply) == 3:
		return Entry{State: Done, Fingerprint: reply[1], Answer: []byte(reply[2])}, nil
	}
	return Entry{}, fmt.Errorf("redis: invalid answer of the script: %.20q", reply[0])
}

// Settle implements [Store].
func (s *Redis) Settle(ctx context.Context, c Claim, change Change) error {
	action := map[Action]string{
		Renew: "renew", Release: "release", Finish: "finish",
	}[change.Action]
	reply, err := s.run(ctx, action, c, change.For, change.Answer)
	switch {
	case err != nil:
		return fmt.Errorf("redis: %s an idempotency key: %w", action, err)
	case reply[0] == "lost":
		return ErrLost
	}
	return nil
}

func (s *Redis) run(ctx context.Context, action string, c Claim, ttl time.Duration, answer []byte) ([]string, error) {
	// 0 would remove the key at once.
	ms := max(ttl.Milliseconds(), 1)
	reply, err := s.script(ctx, redisLua, []string{s.prefix + c.Key}, action, c.Token, ms, c.Fingerprint, answer)
	switch {
	case err == nil && len(reply) == 0:
		return nil, errors.New("the script has no answer")
	case err != nil && incurable(err):
		return nil, fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	return reply, err
}

// incurable reports, by the code that begins an error of Redis, whether no retry
// cures the error. A script may have wrapped the error.
func incurable(err error) bool {
	for err != nil {
		code, _, _ := strings.Cut(strings.TrimPrefix(err.Error(), "ERR "), " ")
		switch code {
		case "WRONGTYPE", "NOPERM", "NOAUTH", "WRONGPASS":
			return true
		}
		err = errors.Unwrap(err)
	}
	return false
}

var _ Store = (*Redis)(nil)
