package stream

import (
	"context"

	"github.com/notifyd/notifyd/internal/store"
)

// nameForeign logs, once, sessions that are not relays and have the lock of a unit: any role that
// may connect can take one. A relay that stops owns units without being a member, too.
func (s *dbSession) nameForeign(ctx context.Context, p picture) error {
	for _, pid := range p.owners {
		if p.wants[pid] != nil || pid == s.me || s.known[pid] {
			continue
		}
		s.known[pid] = true
		var holders []store.ForeignHolder
		err := s.trip(ctx, func(ctx context.Context) (err error) {
			holders, err = store.ReadForeignHolders(ctx, s.conn, s.schema)
			return err
		})
		if err != nil && s.isLost(err) {
			return err
		}
		for _, holder := range holders {
			if holder.PID == pid {
				s.log.WarnContext(ctx, "a session that is not a relay has the lock of a unit; nothing is delivered there until it ends: notifyd doctor says how",
					"session", holder.String())
				break
			}
		}
	}
	return nil
}
