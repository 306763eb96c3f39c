package console

import (
	"context"
	"net/http"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/observe"
	outboxsql "github.com/notifyd/notifyd/sql"
)

type relaysBody struct {
	Relays []store.RelaySession
	// Stream reports that there are shards, which Shards lists.
	Stream bool
	Shards []positionRow
	Notify store.NotifyState
	Stats  observe.Stats
}

// read queries the live relays and the owners of shards.
func (b *relaysBody) read(ctx context.Context, conn *pgx.Conn, schema string) error {
	state, err := outboxsql.ReadState(ctx, conn, schema)
	if err != nil {
		return err
	}
	if b.Stream = state.Mode == outboxsql.ModeStream; !b.Stream {
		b.Relays, err = store.ReadLive(ctx, conn, schema, state.Mode)
		return err
	}
	if b.Relays, err = store.ReadMembers(ctx, conn, schema); err != nil {
		return err
	}
	if err := store.ReadPrograms(ctx, conn, schema, b.Relays); err != nil {
		return err
	}
	backlog, err := store.ReadBacklog(ctx, conn, store.BacklogOptions{Schema: schema, CountsOnly: true})
	b.Shards = positionsOf(backlog, func(*observe.Position) bool { return true })
	return err
}

// relays shows the relays, the shards of each, and whether writers ring.
func (c *Console) relays(w http.ResponseWriter, r *http.Request, s session) error {
	b := relaysBody{Stats: c.cfg.Relay.Stats()}
	ctx, cancel := context.WithTimeout(r.Context(), queryTimeout)
	defer cancel()
	t := c.tables.Load()
	conn, err := t.Pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if err := b.read(ctx, conn.Conn(), t.Schema); err != nil {
		return err
	}
	if b.Notify, err = store.ReadNotifyState(ctx, conn.Conn(), t.Schema); err != nil {
		return err
	}
	return c.render(w, http.StatusOK, "relays", c.newPage("Relays", "relays", s, b))
}
