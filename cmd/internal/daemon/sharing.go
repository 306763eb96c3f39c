package daemon

import (
	"log/slog"
	"sync"
	"time"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/cmd/internal/config"
)

// sharing has the listening connections that the outboxes of a database share. The zero value is ready.
type sharing struct {
	mu  sync.Mutex
	all map[sharingKey]*notifyd.Shared
}

// sharingKey is a database, the user, and the settings of the listening connection.
type sharingKey struct {
	url, listenURL string
	canary         time.Duration
}

// of returns the connection that the outbox of a configuration shares with others.
func (s *sharing) of(c *config.Config, log *slog.Logger) *notifyd.Shared {
	key := sharingKey{c.Database.URL.Reveal(), c.Database.ListenURL.Reveal(), c.Relay.Canary}

	s.mu.Lock()
	defer s.mu.Unlock()

	if s.all[key] == nil {
		if s.all == nil {
			s.all = make(map[sharingKey]*notifyd.Shared)
		}
		s.all[key] = notifyd.NewShared(key.canary, log)
	}
	return s.all[key]
}
