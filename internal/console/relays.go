package console

import (
	"context"
	"net/http"

	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/store"
)

type relaysBody struct {
	Relays   []store.RelaySession
	Slots    []store.SlotSession
	AllSlots int
	Bell     store.BellState
	Stats    dispatch.Stats
}

// relays shows who delivers, who has which share, and whether writers ring.
func (c *Console) relays(w http.ResponseWriter, r *http.Request, s session) error {
	b := relaysBody{AllSlots: dispatch.Slots, Stats: c.cfg.Relay.Stats()}
	ctx, cancel := context.WithTimeout(r.Context(), askTimeout)
	defer cancel()
	t := c.tables.Load()
	conn, err := t.Pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if b.Relays, err = store.ReadRelays(ctx, conn.Conn()); err != nil {
		return err
	}
	if b.Slots, err = store.ReadSlots(ctx, conn.Conn(), t.Schema); err != nil {
		return err
	}
	if b.Bell, err = store.ReadBell(ctx, conn.Conn(), t.Schema); err != nil {
		return err
	}
	return c.render(w, http.StatusOK, "relays", c.newPage("Relays", "relays", s, b))
}
