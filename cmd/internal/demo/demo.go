// Package demo shows notifyd at work: a shop that places orders in real
// transactions, a relay, and a mail server that receives the confirmations.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/email"
	"github.com/notifyd/notifyd/handlers/file"
	"github.com/notifyd/notifyd/internal/idset"
	"github.com/notifyd/notifyd/internal/smtpsink"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// Options of [Run].
type Options struct {
	// Orders is how many orders to commit, at least 1.
	Orders int
	// Databases are tried in this order. The demo uses the first usable one. It creates a schema there, and drops it at
	// the end.
	Databases []Database
	// Mode is how the relay reads the table; "" is a queue.
	Mode outboxsql.Mode
	// Spare is the URL of an empty database that Keep offers to the user for another configuration; "" for none.
	Spare string
	// Keep leaves everything running after the last order until ctx ends.
	Keep bool
	// Out receives the text for people. Width returns the columns of a terminal that can rewrite a progress line. Without
	// a terminal Width is nil.
	Out   io.Writer
	Width func() int
	// Log receives the relay's log.
	Log *slog.Logger
}

// settleWithin is how long after the last commit a delivery may take before it
// counts as lost. Deliveries take milliseconds; a busy machine may take longer.
const settleWithin = 30 * time.Second

// Run runs the demo. An error means that the demo could not run; lost events are in the
// result.
func Run(ctx context.Context, o Options) (Result, error) {
	if o.Orders < 1 {
		return Result{}, fmt.Errorf("orders must be at least 1, not %d", o.Orders)
	}

	dir, err := os.MkdirTemp("", "notifyd-demo-")
	if err != nil {
		return Result{}, fmt.Errorf("make a directory for the demo: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // it holds a certificate only

	d := &demo{Options: o, dir: dir, seen: newSightings()}
	result, err := d.run(ctx)
	return result, errors.Join(err, d.close())
}

// demo holds the open resources of a run.
type demo struct {
	Options
	dir     string
	schema  string
	seen    *sightings
	shop    *shop
	sink    *smtpsink.Sink
	pool    *pgxpool.Pool
	cleanup []func() error
}

// say prints for the user. If the reader of Out is gone, as after "| head", the demo still continues to its cleanup.
func (d *demo) say(format string, args ...any) { _, _ = fmt.Fprintf(d.Out, format, args...) }

func (d *demo) run(ctx context.Context) (Result, error) {
	if err := d.open(ctx); err != nil {
		return Result{}, err
	}

	relay, err := d.relay()
	if err != nil {
		return Result{}, err
	}

	relayCtx, stopRelay := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(relayCtx) }()
	defer stopRelay()

	select {
	case <-relay.Ready():
	case err := <-ended:
		return Result{}, fmt.Errorf("the relay ended early: %w", err)
	case <-ctx.Done():
		stopRelay()
		return Result{}, errors.Join(context.Cause(ctx), <-ended)
	}

	if err := d.place(ctx); err != nil {
		stopRelay()
		return Result{}, errors.Join(err, <-ended)
	}

	d.settle(ctx)
	if ctx.Err() != nil { // the wait was too short to count an event as lost
		stopRelay()
		return Result{}, errors.Join(context.Cause(ctx), <-ended)
	}

	result := d.result()
	d.report(result)
	if d.Keep {
		d.invite()
		d.showMails(ctx)
	}

	stopRelay()
	if err := <-ended; err != nil {
		return result, fmt.Errorf("stop the relay: %w", err)
	}
	return result, nil
}

// open connects to the database, starts the mail server and creates the tables.
func (d *demo) open(ctx context.Context) error {
	if err := d.connect(ctx); err != nil {
		return err
	}
	if err := d.migrate(ctx); err != nil {
		return err
	}

	var err error
	d.sink, err = smtpsink.Start(smtpsink.Options{}) //nolint:contextcheck // it runs until it is closed
	if err != nil {
		return fmt.Errorf("start a mail server: %w", err)
	}
	d.cleanup = append(d.cleanup, d.sink.Close)
	d.say("mail server on %s, STARTTLS\n", d.sink.Addr())

	d.shop = newShop(d.pool, d.schema)
	return d.shop.open(ctx)
}

func (d *demo) migrate(ctx context.Context) error {
	return d.pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		if _, err := outboxsql.Migrate(ctx, c.Conn(), d.schema, outboxsql.MigrateOptions{}); err != nil {
			return err
		}
		if d.Mode != outboxsql.ModeStream {
			return nil
		}
		return outboxsql.SetMode(ctx, c.Conn(), d.schema, d.Mode, outboxsql.ModeOptions{})
	})
}

// relay wires the three destinations of the demo: a mail, a line in a log and
// a function in Go.
func (d *demo) relay() (*notifyd.Relay, error) {
	ca := filepath.Join(d.dir, "ca.pem")
	if err := os.WriteFile(ca, d.sink.CertPEM(), 0o600); err != nil {
		return nil, fmt.Errorf("write the mail server's certificate: %w", err)
	}

	mailer, err := email.New(mailConfig(d.sink.Host(), d.sink.Port(), ca))
	if err != nil {
		return nil, fmt.Errorf("mail handler: %w", err)
	}
	d.cleanup = append(d.cleanup, mailer.Close)

	journal, err := file.NewLog(file.LogConfig{}, file.WithWriter(d.seen.journal()))
	if err != nil {
		return nil, fmt.Errorf("log handler: %w", err)
	}

	relay, err := notifyd.New(d.pool, notifyd.Config{Schema: d.schema, Logger: d.Log})
	if err != nil {
		return nil, err
	}

	return relay, errors.Join(
		relay.Add(notifyd.Destination{Name: "mail", Handler: mailer, Lane: delivery.Lane{Concurrency: 2}}),
		relay.Add(notifyd.Destination{Name: "log", Handler: journal}),
		relay.Add(notifyd.Destination{Name: "warehouse", Handler: delivery.HandlerFunc(d.warehouse)}),
		relay.Route(orderPlaced, "mail", "log"),
		relay.Route("stock.*", "warehouse", "log"),
	)
}

// warehouse is the custom handler: it gets each reservation, and measures the time
// since the commit.
func (d *demo) warehouse(_ context.Context, e *delivery.Event) error {
	d.seen.reserved(e.AggregateID, time.Now())
	return nil
}

// settle waits until all committed events have arrived, at most settleWithin.
func (d *demo) settle(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, settleWithin)
	defer cancel()
	_, _ = d.sink.Wait(ctx, d.shop.committed()) // missing mails are counted afterwards

	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()

	for ctx.Err() == nil {
		d.progress()
		var left bool
		if err := d.pool.QueryRow(ctx, d.left()).Scan(&left); err == nil && !left {
			return
		}

		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// left returns a query that is true while an event is still to be delivered. A queue marks delivered events; in a stream
// every destination has a position.
func (d *demo) left() string {
	table := func(name string) string { return pgx.Identifier{d.schema, name}.Sanitize() }
	if d.Mode != outboxsql.ModeStream {
		return "SELECT EXISTS (SELECT FROM " + table("outbox_events") + " WHERE state <> 'done')"
	}
	return "SELECT EXISTS (SELECT FROM " + table("outbox_events") + " AS e CROSS JOIN " + table("outbox_positions") + " AS p" +
		" WHERE p.destination <> '' AND NOT " + idset.SQLHas("p.head", "p.open", "e.id") + ")" +
		" OR EXISTS (SELECT FROM " + table("outbox_deliveries") + ")"
}

// close closes everything in reverse order.
func (d *demo) close() error {
	var errs []error
	for _, undo := range slices.Backward(d.cleanup) {
		errs = append(errs, undo())
	}
	return errors.Join(errs...)
}
