// Package redisstore keeps idempotency keys in Redis: one hash per key, changed by one
// script, so that each step is atomic. Tests cover a single server. No step touches two
// keys, so a client of sentinels or of a cluster should work as well, but is not tested.
//
// A crash of Redis loses writes that have not reached its disk or a replica, and eviction
// loses keys. The request of a lost key runs again. Use maxmemory-policy noeviction and
// appendonly yes, or [idempotency.Postgres] where that is not enough.
package redisstore

import (
	"context"
	_ "embed" // script.lua
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/notifyd/notifyd/inbox/idempotency"
)

//go:embed script.lua
var scriptLua string

// DefaultPrefix is the default prefix of keys.
const DefaultPrefix = "idempotency:"

// Store is an idempotency.Store. Create it with [New].
type Store struct {
	client redis.UniversalClient
	script *redis.Script
	prefix string
}

// New returns a store that uses client, which the caller closes, and whose keys
// begin with prefix; "" is [DefaultPrefix]. Services that share a Redis each
// have a prefix of their own. The client must have ContextTimeoutEnabled,
// otherwise a Redis that hangs would hold requests for longer than the middleware
// allows.
func New(client redis.UniversalClient, prefix string) (*Store, error) {
	if client == nil {
		return nil, errors.New("redisstore: a client is required")
	}
	if !heedsContext(client) {
		return nil, errors.New("redisstore: set ContextTimeoutEnabled in the options of the client")
	}
	if prefix == "" {
		prefix = DefaultPrefix
	}
	return &Store{client: client, script: redis.NewScript(scriptLua), prefix: prefix}, nil
}

func heedsContext(client redis.UniversalClient) bool {
	switch c := client.(type) {
	case *redis.Client:
		return c.Options().ContextTimeoutEnabled
	case *redis.ClusterClient:
		return c.Options().ContextTimeoutEnabled
	case *redis.Ring:
		return c.Options().ContextTimeoutEnabled
	}
	return true // made by the caller
}

// Begin implements idempotency.Store.
func (s *Store) Begin(ctx context.Context, c idempotency.Claim, lease time.Duration) (idempotency.Entry, error) {
	reply, err := s.run(ctx, "begin", c, lease, nil)
	if err != nil {
		return idempotency.Entry{}, fmt.Errorf("redis: take an idempotency key: %w", err)
	}

	switch {
	case reply[0] == "taken":
		return idempotency.Entry{State: idempotency.Taken}, nil
	case reply[0] == "busy" && len(reply) == 2:
		return idempotency.Entry{State: idempotency.InProgress, Fingerprint: reply[1]}, nil
	case reply[0] == "done" && len(reply) == 3:
		return idempotency.Entry{State: idempotency.Done, Fingerprint: reply[1], Answer: []byte(reply[2])}, nil
	}
	return idempotency.Entry{}, fmt.Errorf("redis: invalid answer of the script: %.20q", reply[0])
}

// Settle implements idempotency.Store.
func (s *Store) Settle(ctx context.Context, c idempotency.Claim, change idempotency.Change) error {
	action := map[idempotency.Action]string{
		idempotency.Renew: "renew", idempotency.Release: "release", idempotency.Finish: "finish",
	}[change.Action]
	reply, err := s.run(ctx, action, c, change.For, change.Answer)
	switch {
	case err != nil:
		return fmt.Errorf("redis: %s an idempotency key: %w", action, err)
	case reply[0] == "lost":
		return idempotency.ErrLost
	}
	return nil
}

func (s *Store) run(ctx context.Context, action string, c idempotency.Claim, ttl time.Duration, answer []byte) ([]string, error) {
	// 0 would remove the key at once.
	ms := max(ttl.Milliseconds(), 1)
	reply, err := s.script.Run(ctx, s.client, []string{s.prefix + c.Key}, action, c.Token, ms, c.Fingerprint, answer).StringSlice()
	switch {
	case err == nil && len(reply) == 0:
		return nil, errors.New("the script has no answer")
	case err != nil && incurable(err):
		return nil, fmt.Errorf("%w: %w", idempotency.ErrUnusable, err)
	}
	return reply, err
}

// incurable reports, by the code that begins an error of Redis, whether no retry
// cures the error.
func incurable(err error) bool {
	for _, code := range []string{"WRONGTYPE", "NOPERM", "NOAUTH", "WRONGPASS"} {
		if redis.HasErrorPrefix(err, code) {
			return true
		}
	}
	return false
}

var _ idempotency.Store = (*Store)(nil)
