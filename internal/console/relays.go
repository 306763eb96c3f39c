package console

import (
	"cmp"
	"context"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/observe"
	outboxsql "github.com/notifyd/notifyd/sql"
)

type relaysBody struct {
	// Problems are those of relays.
	Problems []problem
	Relays   []relayRow
	// Others are sessions of relays that do not describe themselves.
	Others []store.RelaySession
	// Stream reports that there are shards, which Shards lists.
	Stream bool
	Shards []positionRow
	// Finding tells how the relay of this page finds new events; "" without one.
	Finding string
}

// relayRow is a relay that is alive.
type relayRow struct {
	store.Program

	Here     bool     // it serves this page
	Delivers []string // destinations; nil where they are not known
	Well     bool
	session  store.RelaySession
}

// relays shows the relays that are alive, and what each delivers.
func (o *outbox) relays(w http.ResponseWriter, r *http.Request, v viewer) error {
	ctx, cancel := context.WithTimeout(r.Context(), queryTimeout)
	defer cancel()

	s := o.sampler.now(ctx)
	t := o.tables.Load()
	conn, err := t.Pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()

	var b relaysBody
	if err := b.read(ctx, conn.Conn(), t.Schema); err != nil {
		return err
	}
	notify, err := store.ReadNotifyState(ctx, conn.Conn(), t.Schema)
	if err != nil {
		return err
	}

	for _, p := range o.problems(s) {
		if p.ofRelays {
			p.Link = "" // it is this page
			b.Problems = append(b.Problems, p)
		}
	}

	for i := range b.Relays {
		row := &b.Relays[i]
		row.Here = row.Here && !o.unrelayed
		row.Well = row.Refused == "" && (!row.Here || !troubled(s.stats))

		if row.Delivers == nil && !b.Stream {
			for _, d := range row.Destinations {
				row.Delivers = append(row.Delivers, d.Name)
			}
		}
		if row.Here && row.Delivers == nil {
			row.Delivers = s.configured()
		}
	}

	b.Finding = finding(s.stats, notify)
	return o.render(w, http.StatusOK, "relays", o.newPage("Relays", "relays", v, b))
}

// read queries the live relays and the owners of shards.
func (b *relaysBody) read(ctx context.Context, conn *pgx.Conn, schema string) error {
	state, err := outboxsql.ReadState(ctx, conn, schema)
	if err != nil {
		return err
	}

	all, err := store.ReadLive(ctx, conn, schema, state.Mode)
	if err != nil {
		return err
	}

	b.take(all)
	b.Stream = state.Mode == outboxsql.ModeStream
	if !b.Stream {
		return nil
	}

	backlog, err := store.ReadBacklog(ctx, conn, store.BacklogOptions{Schema: schema, CountsOnly: true})
	for _, p := range backlog.Positions {
		b.add(p, all)
	}
	return err
}

// take sorts the relays: that of this page first, then by host.
func (b *relaysBody) take(all []store.RelaySession) {
	for _, r := range all {
		if r.Program == nil {
			b.Others = append(b.Others, r)
			continue
		}

		here := r.Program.Process == os.Getpid() && r.Program.Host == store.ThisHost()
		b.Relays = append(b.Relays, relayRow{Program: *r.Program, Here: here, session: r})
	}

	slices.SortStableFunc(b.Relays, func(x, y relayRow) int {
		if x.Here != y.Here {
			if x.Here {
				return -1
			}
			return 1
		}
		return cmp.Or(strings.Compare(x.Host, y.Host), cmp.Compare(x.Process, y.Process))
	})
}

// add adds a shard to the list, and to the destinations of its relay.
func (b *relaysBody) add(p observe.Position, all []store.RelaySession) {
	row := positionRow{p, p.Name(), relayOfPosition(&p, all)}
	for i := range b.Relays {
		if r := &b.Relays[i]; p.Session != nil && p.Owner != nil && r.session.Owner == *p.Owner {
			r.Delivers = append(r.Delivers, row.Title)
		}
	}
	b.Shards = append(b.Shards, row)
}

// Name tells operators where the relay is.
func (r relayRow) Name() string { return r.Host + ", process " + strconv.Itoa(r.Process) }

// Versions returns the versions of the relays if they differ.
func (b relaysBody) Versions() []string {
	var all []string
	for _, r := range b.Relays {
		if r.Version != "" {
			all = append(all, r.Version)
		}
	}

	slices.Sort(all)
	all = slices.Compact(all)
	if len(all) < 2 {
		return nil
	}
	return all
}

// troubled reports that a relay needs an operator.
func troubled(s observe.Stats) bool {
	isHeldUp := len(s.Refusals) > 0 || len(s.Hangs) > 0
	return s.DatabaseDown || isHeldUp || deaf(s.Listener)
}

// deaf reports that notifications are not heard.
func deaf(l *observe.ListenerStats) bool { return l != nil && (!l.Listening || l.Trouble != nil) }

// finding tells how a relay finds new events.
func finding(s observe.Stats, notify store.NotifyState) string {
	switch {
	case s.WakeState == "", s.DatabaseDown:
		return ""
	case notify.Mode == outboxsql.NotifyOff:
		return "Writers do not notify relays (notifyd migrate --notify off): events are found by polling."
	case deaf(s.Listener), s.Listener == nil && s.WakeState != "polling":
		return "It hears no notifications: events are found by polling."
	case s.WakeState == "polling":
		return "It reads without a pause, because there is much to deliver. Writers do not notify it meanwhile."
	case s.WakeState == "settling":
		return "It reads at short intervals until the writers that began without notifying have ended. New writers notify it."
	default:
		return "Writers notify it, and it finds a new event at once."
	}
}
