package stream

import (
	"context"

	"github.com/notifyd/notifyd/internal/store"
)

// nameStrangers logs, once, sessions that are no relay's and have the lock of a unit: any role that
// may connect can take one. A relay that stops owns units without being a member, too.
func (s *dbSession) nameStrangers(ctx context.Context, p picture) error {
	for _, pid := range p.owners {
		if p.wants[pid] != nil || pid == s.me || s.known[pid] {
			continue
		}
		s.known[pid] = true
		var strangers []store.Stranger
		err := s.trip(ctx, func(ctx context.Context) (err error) {
			strangers, err = store.ReadStrangers(ctx, s.conn, s.schema)
			return err
		})
		if err != nil && s.isLost(err) {
			return err
		}
		for _, stranger := range strangers {
			if stranger.PID == pid {
				s.log.WarnContext(ctx, "a session that is not a relay has the lock of a unit; nothing is delivered there until it ends: notifyd doctor says how",
					"session", stranger.String())
				break
			}
		}
	}
	return nil
}
