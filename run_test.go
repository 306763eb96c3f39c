package notifyd

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/email"
	"github.com/notifyd/notifyd/handlers/file"
	"github.com/notifyd/notifyd/handlers/kafka"
	"github.com/notifyd/notifyd/handlers/webhook"
	"github.com/notifyd/notifyd/internal/engine"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/settingstest"
	"github.com/notifyd/notifyd/internal/pgschema"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/observe"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// TestLeftover: what keeps a relay running until it is idle, and what does not.
func TestLeftover(t *testing.T) {
	t.Parallel()
	p := newPatient(t, tables(t, outboxsql.ModeQueue), time.Second, delivery.HandlerFunc(works), delivery.Lane{})
	for event, to := range map[string]string{"fax.sent": "fax", "paper.sent": "paper"} {
		if err := p.Handle(event, Destination{Name: to, Handler: delivery.HandlerFunc(works)}); err != nil {
			t.Fatal(err)
		}
	}
	at := time.Now()
	past, soon, late := at.Add(-time.Hour), at.Add(dueSoon), at.Add(dueSoon+time.Microsecond)
	one := observe.Count{N: 1}
	of := func(all ...observe.DestinationBacklog) observe.Backlog { return observe.Backlog{Destinations: all} }
	mail, fax := observe.DestinationBacklog{Name: "mail"}, observe.DestinationBacklog{Name: "fax", Pause: &observe.Pause{By: "a test"}}
	all := []observe.DestinationBacklog{fax, {Name: "mail", Pause: fax.Pause}, {Name: "paper", Pause: fax.Pause}}
	types := func(names ...string) (all []observe.TypeBacklog) {
		for _, name := range names {
			all = append(all, observe.TypeBacklog{EventType: name, Count: one})
		}
		return all
	}
	with := func(d observe.DestinationBacklog, set func(d *observe.DestinationBacklog)) observe.DestinationBacklog {
		set(&d)
		return d
	}
	running := func(d *observe.DestinationBacklog) { d.Running = one }
	due := func(at time.Time) func(d *observe.DestinationBacklog) {
		return func(d *observe.DestinationBacklog) { d.NextDue = &at }
	}
	dead := func(d *observe.DestinationBacklog) { d.Dead, d.Parked = one, one }
	// stream is a stream in which mail and the search for events without a route are those of this relay, before a change.
	other := p.owner + 1
	session := &observe.ShardSession{PID: 1}
	stream := func(change func(mail, router *observe.Position), all ...observe.DestinationBacklog) observe.Backlog {
		positions := []observe.Position{{Owner: &p.owner, Session: session}, {Destination: "mail", Owner: &p.owner, Session: session}}
		for _, name := range []string{"fax", "paper"} {
			positions = append(positions, observe.Position{Destination: name, Owner: &other, Session: session, Lag: 5000, Oldest: &observe.Waiting{EventID: 1}})
		}
		change(&positions[1], &positions[0])
		return observe.Backlog{Mode: observe.ModeStream, Positions: positions, Destinations: all}
	}
	for name, c := range map[string]struct {
		backlog observe.Backlog
		want    bool
	}{
		"nothing":                       {observe.Backlog{}, false},
		"an event":                      {observe.Backlog{Types: types("x")}, true},
		"a paused event":                {observe.Backlog{Types: types("fax.sent"), Destinations: of(fax).Destinations}, false},
		"a paused event and another":    {observe.Backlog{Types: types("fax.sent", "x"), Destinations: of(fax).Destinations}, true},
		"an event while all are paused": {observe.Backlog{Types: types("x", "fax.sent"), Destinations: all, NextDelayed: &past}, false},
		"a running delivery":            {of(with(mail, running)), true},
		"one of a paused destination":   {of(with(fax, running)), false},
		"one of a strange destination":  {of(with(observe.DestinationBacklog{Name: "pigeon"}, running)), false},
		"a retry":                       {of(with(mail, due(past))), true},
		"a retry that is due soon":      {of(with(mail, due(soon))), true},
		"a retry that is due later":     {of(with(mail, due(late))), false},
		"a paused retry":                {of(with(fax, due(past))), false},
		"a delayed event":               {observe.Backlog{NextDelayed: &soon}, true},
		"an event delayed for long":     {observe.Backlog{NextDelayed: &late}, false},
		"a dead letter":                 {of(with(mail, dead)), false},

		"its own":                    {stream(func(_, _ *observe.Position) {}), false},
		"an event of a stream":       {stream(func(mail, _ *observe.Position) { mail.Lag, mail.Oldest = 5, &observe.Waiting{EventID: 1} }), true},
		"an open transaction":        {stream(func(mail, _ *observe.Position) { mail.Lag = store.OldestLooked }), false},
		"more than was looked at":    {stream(func(mail, _ *observe.Position) { mail.Lag = store.OldestLooked + 1 }), true},
		"a replay":                   {stream(func(mail, _ *observe.Position) { mail.Replay = &observe.Replay{} }), true},
		"no owner":                   {stream(func(mail, _ *observe.Position) { mail.Session = nil }), true},
		"no position":                {stream(func(mail, _ *observe.Position) { mail.Destination = "pigeon" }), true},
		"an owner without a number":  {stream(func(mail, _ *observe.Position) { mail.Owner, mail.Replay = nil, &observe.Replay{} }), false},
		"a paused position":          {stream(func(mail, _ *observe.Position) { mail.Session = nil }, all...), false},
		"another's retry":            {stream(func(mail, _ *observe.Position) { mail.Owner = &other }, with(mail, due(past))), false},
		"no one searches for routes": {stream(func(_, router *observe.Position) { router.Session = nil }), true},
		"an event without a route":   {stream(func(_, router *observe.Position) { router.Lag, router.Oldest = 1, &observe.Waiting{EventID: 1} }), true},
		"the same, another's":        {stream(func(_, router *observe.Position) { router.Owner, router.Oldest = &other, &observe.Waiting{EventID: 1} }), false},
	} {
		c.backlog.At = at
		if got := (leftover{relay: p.Relay, backlog: &c.backlog}).any(); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestLeftoverRoutes: an event type without a route waits for a person; one that has gained a route does not, unless all of its
// destinations are paused. Until an event without a route is stored, it is fresh.
func TestLeftoverRoutes(t *testing.T) {
	t.Parallel()
	r, err := New(tables(t, outboxsql.ModeQueue), Config{UntilIdle: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Handle("mail.*", Destination{Name: "mail", Handler: delivery.HandlerFunc(works)}); err != nil {
		t.Fatal(err)
	}
	unrouted := func(name string) observe.Backlog {
		return observe.Backlog{Unrouted: []observe.TypeBacklog{{EventType: name}}}
	}
	paused := unrouted("mail.sent")
	paused.Destinations = []observe.DestinationBacklog{{Name: "mail", Pause: &observe.Pause{By: "a test"}}}
	for name, c := range map[string]struct {
		backlog observe.Backlog
		want    bool
	}{
		"none":           {unrouted("fax.sent"), false},
		"gained":         {unrouted("mail.sent"), true},
		"gained, paused": {paused, false},
		"fresh":          {observe.Backlog{Types: []observe.TypeBacklog{{EventType: "fax.sent"}}}, true},
	} {
		if got := (leftover{relay: r, backlog: &c.backlog}).any(); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestUntilIdleAfterStuckCall: a call that was given up and has not returned keeps the relay running, which would otherwise
// end with an error although all is delivered.
func TestUntilIdleAfterStuckCall(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	pool := tables(t, outboxsql.ModeQueue)
	var calls atomic.Int64
	hang := make(chan struct{})
	h, called := errands(func(context.Context) error {
		if calls.Add(1) == 1 {
			<-hang
		}
		return nil
	})
	p := newPatient(t, pool, time.Second, h, delivery.Lane{Timeout: 10 * time.Millisecond, Backoff: delivery.Backoff{Initial: time.Millisecond, Max: time.Millisecond, Multiplier: 1}})
	p.config.UntilIdle = true
	ended := p.run()
	execute(t, pool, `INSERT INTO outbox_events (event_type, payload) VALUES ('x', '{}')`)
	<-called
	<-called
	done := func() bool {
		b, err := p.Backlog(t.Context())
		return err == nil && !leftover{relay: p.Relay, backlog: &b}.any()
	}
	watches := func() uint64 {
		for _, c := range p.Stats().Connections {
			if c.Role == "watch" {
				return c.Opened
			}
		}
		return 0
	}
	for looks, before := uint64(0), watches(); !done() || watches() < before+looks+4; looks++ { // until the relay has checked some more
		if len(ended) > 0 {
			t.Fatal("the relay has ended before the call has")
		}
	}
	if n := p.Stats().Destinations[0].Stuck; n != 1 {
		t.Errorf("%d calls are stuck", n)
	}
	close(hang)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	ended <- nil // for the end of the test
}

// idleCutter is a way to a server on which no connection lasts that is silent for a second, as through some NAT
// gateways and proxies, only sooner.
type idleCutter struct {
	target string
	listen net.Listener
	work   sync.WaitGroup
	cuts   atomic.Int64
}

const cutAfter = time.Second

func startIdleCutter(t *testing.T, target string) *idleCutter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &idleCutter{target: target, listen: l}
	c.work.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return // closed below
			}
			c.work.Go(func() { c.forward(in) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		c.work.Wait()
	})
	return c
}

// forward forgets a connection without a word to either side but the end of the socket.
func (c *idleCutter) forward(in net.Conn) {
	out, err := net.Dial("tcp", c.target)
	if err != nil {
		_ = in.Close()
		return
	}
	idle := time.AfterFunc(cutAfter, func() {
		c.cuts.Add(1)
		_, _ = in.Close(), out.Close()
	})
	defer idle.Stop()
	var both sync.WaitGroup
	for from, to := range map[net.Conn]net.Conn{in: out, out: in} {
		both.Go(func() {
			_, _ = io.Copy(to, &reads{from, func() { idle.Reset(cutAfter) }})
			_, _ = in.Close(), out.Close()
		})
	}
	both.Wait()
}

// reads tells of each read.
type reads struct {
	net.Conn
	tell func()
}

func (b *reads) Read(p []byte) (int, error) {
	n, err := b.Conn.Read(p)
	if n > 0 {
		b.tell()
	}
	return n, err
}

// TestIdleCut: connections that are cut while nothing happens cost no event.
func TestIdleCut(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	inBothModes(t, func(t *testing.T, pool *pgxpool.Pool) {
		t.Helper()
		cfg := pool.Config()
		port := cfg.ConnConfig.Port
		cutter := startIdleCutter(t, net.JoinHostPort(cfg.ConnConfig.Host, strconv.Itoa(int(port))))
		through, ok := cutter.listen.Addr().(*net.TCPAddr)
		if !ok {
			t.Fatal("not TCP")
		}
		cfg.ConnConfig.Host, cfg.ConnConfig.Port, cfg.ConnConfig.Fallbacks = "127.0.0.1", uint16(through.Port), nil
		cut, err := pgxpool.NewWithConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(cut.Close)
		h, called := errands(func(context.Context) error { return nil })
		// Polls, canaries and proofs that are rarer than the cuts.
		r, err := New(cut, Config{PollInterval: time.Minute, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Handle("*", Destination{Name: "mail", Handler: h}); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		t.Cleanup(func() {
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
		<-r.Ready()
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for range 3 {
			for before := cutter.cuts.Load(); cutter.cuts.Load() < before+2; {
				<-tick.C
			}
			execute(t, pool, insertThree)
			for range 3 {
				<-called
			}
		}
	})
}

// TestRemovedDestination: a position that no relay has, and that holds back the purge, is an incident once, after a
// while; and once more after it has been well.
func TestRemovedDestination(t *testing.T) {
	t.Parallel()
	w := newRemoved(func(name string) bool { return name == "mine" })
	held := []observe.Position{
		{Destination: "gone", Lowest: 7, HoldsBack: true},
		{Destination: "mine", HoldsBack: true},
		{Destination: "", HoldsBack: true},
		{Destination: "others", HoldsBack: true, Session: &observe.ShardSession{PID: 1}},
		{Destination: "ahead", Lowest: 9},
	}
	now := time.Now()
	if news := w.look(now, held); len(news) != 0 {
		t.Errorf("at once: %v", news)
	}
	news := w.look(now.Add(removedAfter), held)
	if len(news) != 1 || news[0].Kind != delivery.IncidentHeldBack || news[0].Destination != "gone" || !strings.Contains(news[0].Err.Error(), `above 7 from being purged: put it back, or notifyd positions forget "gone"`) {
		t.Errorf("after a while: %v", news)
	}
	if news := w.look(now.Add(2*removedAfter), held); len(news) != 0 {
		t.Errorf("again: %v", news)
	}
	w.look(now.Add(2*removedAfter), held[1:])
	w.look(now.Add(2*removedAfter), held)
	if news := w.look(now.Add(3*removedAfter), held); len(news) != 1 {
		t.Errorf("another time: %v", news)
	}
}

// outages is an observer of destinations that become unavailable.
type outages chan delivery.Incident

// Observe implements Observer.
func (o outages) Observe(i delivery.Incident) {
	if i.Kind == delivery.IncidentDown {
		o <- i
	}
}

// TestShardComesBack: a relay that gets a shard again after it has lost it begins without what it knew about the destination, which
// another relay may have found to be up since. That it is down still is news.
func TestShardComesBack(t *testing.T) {
	t.Parallel()
	pool := tables(t, outboxsql.ModeStream)
	news := make(outages, 10)
	relay, err := New(pool, Config{Observer: news})
	if err != nil {
		t.Fatal(err)
	}
	err = relay.Handle("*", Destination{Name: "mail", Handler: delivery.HandlerFunc(func(context.Context, *delivery.Event) error { return delivery.Unavailable(errors.New("away")) })})
	if err != nil {
		t.Fatal(err)
	}
	p := &patient{T: t, Relay: relay}
	p.start()
	execute(t, pool, insertThree)
	<-news
	execute(t, pool, `UPDATE outbox_positions SET epoch = epoch + 1 WHERE destination = 'mail'`) // by another relay, or by hand
	<-news
}

// TestConfigZeros: a field that is zero has its default, and None stands for 0. Another negative value is a mistake.
func TestConfigZeros(t *testing.T) {
	t.Parallel()
	c := Config{}.WithDefaults()
	if c.Canary != 5*time.Second || c.ShutdownTimeout != 20*time.Second || c.Retention.Keep != 7*24*time.Hour || c.Schema != "public" || c.Logger == nil {
		t.Errorf("%+v", c)
	}
	none := Config{Canary: None, ShutdownTimeout: None, Retention: Retention{Keep: None}}
	if err := none.Validate(); err != nil {
		t.Error(err)
	}
	if c := none.WithDefaults(); c.Canary != 0 || c.ShutdownTimeout != 0 || c.Retention.Keep != 0 {
		t.Errorf("%+v", c)
	}
}

// noHandler is a handler that is never called.
func noHandler(context.Context, *delivery.Event) error { return nil }

// TestConfigArrives: every setting of a relay arrives where it acts. A setting that this table does not name fails the
// test.
func TestConfigArrives(t *testing.T) {
	t.Parallel()
	const batch = 2
	pool := tables(t, outboxsql.ModeQueue)
	observed := make(incidents, 1)

	var c Config
	settingstest.Fill(t, settingstest.Of(&c), map[string]any{
		"Schema": "public2", "Outbox": "shop", "Logger": slog.New(slog.NewTextHandler(t.Output(), nil)), "Observer": observed,
		"ListenConfig": pool.Config().ConnConfig, "Shared": NewShared(0, nil), "Program.Version": "1.2.3",
		"Program.Config": "/etc/notifyd.yaml", "Program.Started": time.Now().Add(-time.Hour),
		"Retention.Keep": 48 * time.Hour, "Retention.Batch": batch,
	})

	// made returns a relay without the settings that leave out a part of it.
	made := func(t *testing.T, change func(c *Config)) *Relay {
		t.Helper()
		one := c
		one.PollingOnly, one.Shared = false, nil
		change(&one)
		r, err := New(pool, one)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	r := made(t, func(*Config) {})

	equal := func(t *testing.T, got, want any) {
		t.Helper()
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}

	// limit compares a limit of both engines.
	limit := func(of func(engine.Limits) any, want any) func(*testing.T) {
		return func(t *testing.T) {
			equal(t, of(r.queueOptions().Limits), want)
			equal(t, of(r.streamOptions().Limits), want)
		}
	}

	// purged deletes what has been kept long enough. It returns how many events each statement deleted, and how many are
	// left.
	purged := sync.OnceValues(func() (most, left int) {
		r := made(t, func(c *Config) { c.Schema, c.Retention.Partitions = "public", PartitionsNone })
		r.session = store.NewSession(r.connector, store.SessionOptions{})
		defer r.session.Close(t.Context())
		for _, statement := range []string{
			`INSERT INTO outbox_events (event_type, payload, state, processed_at)
				SELECT 'x', '{}', 'done', now() - make_interval(hours => 54 - i) FROM generate_series(1, 8) AS i`,
			`CREATE TABLE deletions (n int)`,
			`CREATE FUNCTION deletions() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
				INSERT INTO deletions SELECT count(*) FROM gone; RETURN NULL; END $$`,
			`CREATE TRIGGER deletions AFTER DELETE ON outbox_events REFERENCING OLD TABLE AS gone
				FOR EACH STATEMENT EXECUTE FUNCTION deletions()`,
		} {
			if _, err := pool.Exec(t.Context(), statement); err != nil {
				t.Fatal(err)
			}
		}

		newPurger(r).purgeAll(t.Context())
		err := pool.QueryRow(t.Context(), `SELECT (SELECT max(n) FROM deletions), (SELECT count(*) FROM outbox_events)`).Scan(&most, &left)
		if err != nil {
			t.Fatal(err)
		}
		return most, left
	})

	settingstest.Arrive(t, &c, map[string]func(t *testing.T){
		"Schema": func(t *testing.T) {
			equal(t, r.connector.Schema+" "+r.subscriber().Channel, c.Schema+" "+pgschema.Channel(c.Schema))
		},
		"Outbox": func(t *testing.T) {
			equal(t, r.queueOptions().Outbox+" "+r.streamOptions().Outbox, c.Outbox+" "+c.Outbox)
		},
		"Logger": func(t *testing.T) { equal(t, r.log, c.Logger) },
		"Observer": func(t *testing.T) {
			r.dispatcher.Observe(delivery.Incident{Destination: "a"})
			equal(t, (<-observed).Destination, "a")
		},
		"ListenConfig": func(t *testing.T) { equal(t, r.listening.Config == c.ListenConfig, true) },
		"Shared": func(t *testing.T) {
			r := made(t, func(one *Config) { one.Shared = c.Shared })
			equal(t, r.listener == c.Shared.listener, true)
		},
		"PollingOnly": func(t *testing.T) {
			r := made(t, func(c *Config) { c.PollingOnly = true })
			equal(t, r.listener == nil && r.trigger == nil, true)
		},
		"UntilIdle":            func(t *testing.T) { tested(t, "cmd/notifyd/until_idle_test.go", "TestUntilIdle") },
		"Program.Version":      func(t *testing.T) { equal(t, r.program.Version, c.Program.Version) },
		"Program.Config":       func(t *testing.T) { equal(t, r.program.Config, c.Program.Config) },
		"Program.Started":      func(t *testing.T) { equal(t, r.program.StartedAt, c.Program.Started) },
		"Retention.Partitions": func(t *testing.T) { equal(t, newPurger(r).partitions != nil, true) },
		"Retention.Keep": func(t *testing.T) {
			_, left := purged()
			equal(t, left, 2) // the events of the last 48 hours
		},
		"Retention.Batch": func(t *testing.T) {
			most, _ := purged()
			equal(t, most, batch)
		},
		"Connections": func(t *testing.T) {
			equal(t, r.connector.Wants, c.Connections+store.BesideClaims)
			limit(func(l engine.Limits) any { return l.Claims }, c.Connections)(t)
		},
		"Batch":      limit(func(l engine.Limits) any { return l.Batch }, c.Batch),
		"BatchBytes": limit(func(l engine.Limits) any { return l.Bytes }, c.BatchBytes),
		"MaxEventBytes": func(t *testing.T) {
			equal(t, r.queueSession().EventBytes, c.MaxEventBytes)
			limit(func(l engine.Limits) any { return l.EventBytes }, c.MaxEventBytes)(t)
		},
		"LockBudget": func(t *testing.T) {
			equal(t, r.dispatchConfig().Window, c.LockBudget/2)
			limit(func(l engine.Limits) any { return l.LockBudget }, c.LockBudget)(t)
		},
		"Lease": func(t *testing.T) {
			equal(t, r.queueSession().Lease, c.Lease)
			limit(func(l engine.Limits) any { return l.Lease }, c.Lease)(t)
		},
		"PollInterval":    limit(func(l engine.Limits) any { return l.PollInterval }, c.PollInterval),
		"Canary":          func(t *testing.T) { equal(t, r.proof().Every, c.Canary) },
		"ShutdownTimeout": func(t *testing.T) { equal(t, r.dispatchConfig().ShutdownTimeout, c.ShutdownTimeout) },
	})

	limits := r.config.limits()
	for _, s := range settingstest.Of(&limits) {
		if s.Value.IsZero() {
			t.Errorf("the limit %s of an engine has no setting", s.Path)
		}
	}

	// The lane of a destination comes to the dispatcher as it was added. The tests of dispatch see it act.
	var l delivery.Lane
	settingstest.Fill(t, settingstest.Of(&l), map[string]any{
		"OnDead.To": "dead", "StartFrom": "now", "RateLimit": delivery.Rate{Events: 500, Per: time.Minute}, "Order": delivery.OrderAggregate,
		"Retry": []time.Duration{time.Minute},
	})
	l.Retry = nil // it excludes Backoff
	if err := r.Add(Destination{Name: "a", Handler: delivery.HandlerFunc(noHandler), Lane: l}); err != nil {
		t.Fatal(err)
	}
	settingstest.Same(t, settingstest.Of(&r.dispatcher.Destination("a").Lane), settingstest.Of(&l))
	equal(t, r.streamOptions().Starts["a"], engine.Start{Kind: engine.StartNow})
}

// incidents are what an observer was told.
type incidents chan delivery.Incident

func (i incidents) Observe(incident delivery.Incident) { i <- incident }

// tested fails unless a test has this name: it sees what the caller cannot see.
func tested(t *testing.T, path, name string) {
	t.Helper()
	if text := testenv.ReadFile(t, path); !strings.Contains(text, "func "+name+"(t *testing.T)") {
		t.Errorf("%s has no %s", path, name)
	}
}

func TestConfigMistakes(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]Config{
		"connections: 1001 is too large":                {Connections: 1001},
		"batch: -1 is too small":                        {Batch: -1},
		"batch_bytes: -1 is too small":                  {BatchBytes: -1},
		"max_event_bytes: 1 is too small":               {MaxEventBytes: 1},
		"lock_budget: 3s is too large":                  {LockBudget: 3 * time.Second},
		"lease: 1s is not longer than lock_budget (2s)": {Lease: time.Second, LockBudget: 2 * time.Second},
		"poll_interval: -1ns is too small":              {PollInterval: -1},
		"canary: 1ms is too small: the least is 100ms":  {Canary: time.Millisecond},
		"retention.batch: -1 is too small":              {Retention: Retention{Batch: -1}},
		`retention.partitions: unknown word "weekly"`:   {Retention: Retention{Partitions: "weekly"}},
		"canary: -5s is too small":                      {Canary: -5 * time.Second},
		"shutdown_timeout: -1s is too small":            {ShutdownTimeout: -time.Second},
		"retention.keep: -1h0m0s is too small":          {Retention: Retention{Keep: -time.Hour}},
		"schema":                                        {Schema: "\x00"},
		"shutdown_timeout: 1ns is too small":            {ShutdownTimeout: 1},
	} {
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestRegistrationErrorsHaveCures: what a program registers wrongly is answered with what to write.
func TestRegistrationErrorsHaveCures(t *testing.T) {
	t.Parallel()
	r, err := New(tables(t, outboxsql.ModeQueue), Config{})
	if err != nil {
		t.Fatal(err)
	}
	handler := delivery.HandlerFunc(works)
	if err := r.Handle("order.*", Destination{Name: "mail", Handler: handler}); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"no name":       {r.Add(Destination{Handler: handler}), "it has no name: give it one that stays"},
		"no handler":    {r.Add(Destination{Name: "crm"}), "it has no handler: set Handler"},
		"twice":         {r.Add(Destination{Name: "mail", Handler: handler}), "add it once, and route other event types to it with Route"},
		"unknown":       {r.Route("user.*", "crm"), "nothing has this name: add the destination first (there are mail)"},
		"nowhere":       {r.Route("user.*"), "none is named: name one or more"},
		"a route again": {r.Route("order.*", "mail"), "it has a route: name all its destinations in one call"},
		"no pattern":    {r.Route("order*", "mail"), "order*"},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, c.err, c.want)
		}
	}
}

// TestNoDestinations: a relay that can deliver nothing says so.
func TestNoDestinations(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	r, err := New(tables(t, outboxsql.ModeQueue), Config{UntilIdle: true, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Run(context.WithoutCancel(t.Context())); err != nil || !strings.Contains(log.String(), "relay has no destinations") {
		t.Errorf("Run = %v\n%s", err, log.String())
	}
}

// TestTypeOf: a handler of each destination has the name that the configuration file gives to its type.
func TestTypeOf(t *testing.T) {
	t.Parallel()
	for want, h := range map[string]delivery.Handler{
		"email": (*email.Handler)(nil), "file": (*file.Handler)(nil), "log": (*file.Log)(nil), "kafka": (*kafka.Handler)(nil),
		"webhook": (*webhook.Handler)(nil), "delivery.HandlerFunc": delivery.HandlerFunc(nil), "": nil,
	} {
		if got := typeOf(h); got != want {
			t.Errorf("%T is %q, want %q", h, got, want)
		}
	}
}
