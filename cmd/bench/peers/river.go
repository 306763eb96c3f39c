package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

const (
	// riverConns is more connections than River was ever observed to use; notifyd opens seven.
	riverConns = 20
	// riverStop is how long a client may take to stop.
	riverStop = 30 * time.Second
)

// riverSettings are the settings that differ between the variants of River. Zero means River's default.
type riverSettings struct {
	workers  int
	cooldown time.Duration
	poll     time.Duration
	commit   commit
}

func (s riverSettings) String() string {
	text := fmt.Sprintf("%d workers, ", s.workers)
	if s.cooldown == 0 {
		text += fmt.Sprintf("defaults: cooldown %v, poll %v", river.FetchCooldownDefault, river.FetchPollIntervalDefault)
	} else {
		text += fmt.Sprintf("cooldown %v, poll %v", s.cooldown, s.poll)
	}
	return text + ", " + s.commit.String()
}

// riverPeer is River.
type riverPeer struct {
	riverSettings
	db       database
	log      *slog.Logger
	inserter *river.Client[pgx.Tx]
}

// openRiver makes River's tables.
func openRiver(ctx context.Context, c *comparison, db database) ([]*variant, error) {
	migrator, err := rivermigrate.New(riverpgxv5.New(db.pool), &rivermigrate.Config{Logger: c.log})
	if err != nil {
		return nil, err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return nil, err
	}

	var all []*variant
	add := func(measured measures, s riverSettings) error {
		p, err := newRiver(c, db, s)
		all = append(all, &variant{name: "River", settings: s.String(), measures: measured, peer: p})
		return err
	}

	// The shortest cooldown that River allows, and a short poll interval: see FetchCooldown and
	// FetchPollInterval of river.Config (package documentation).
	const cooldown, poll = river.FetchCooldownMin, 10 * time.Millisecond
	for _, commit := range []commit{commitDefault, commitOff} {
		for _, more := range []struct {
			measures
			riverSettings
		}{
			{latencies, riverSettings{workers: 100, commit: commit}},
			{drains | latencies | inserts, riverSettings{workers: 100, cooldown: cooldown, poll: poll, commit: commit}},
			{drains, riverSettings{workers: 1000, cooldown: cooldown, poll: poll, commit: commit}},
			{drains, riverSettings{workers: 2000, cooldown: cooldown, poll: poll, commit: commit}},
			// The settings of River's own benchmark: `river bench`.
			{drains, riverSettings{workers: 2000, cooldown: 2 * time.Millisecond, poll: 20 * time.Millisecond, commit: commit}},
		} {
			if err := add(more.measures, more.riverSettings); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// newRiver also creates the client of the writers. Its cooldown must equal the cooldown of the workers' client: River
// notifies at most once per cooldown and client.
func newRiver(c *comparison, db database, s riverSettings) (*riverPeer, error) {
	p := &riverPeer{riverSettings: s, db: db, log: c.log}
	var err error
	p.inserter, err = river.NewClient(riverpgxv5.New(db.pool), p.config())
	return p, err
}

func (p *riverPeer) config() *river.Config {
	return &river.Config{Logger: p.log, FetchCooldown: p.cooldown, FetchPollInterval: p.poll}
}

func (p *riverPeer) tables() tables {
	return tables{
		names: []string{"river_job"},
		left:  "SELECT EXISTS (SELECT FROM river_job WHERE state IN ('available', 'running', 'retryable', 'scheduled', 'pending'))",
		done:  "SELECT count(*) FROM river_job WHERE state = 'completed'",
	}
}

func (p *riverPeer) preload(ctx context.Context, n int) error {
	return inBatches(n, func(from, to int) error {
		jobs := make([]river.InsertManyParams, 0, to-from)
		for seq := from; seq < to; seq++ {
			jobs = append(jobs, river.InsertManyParams{Args: newEvent(seq)})
		}
		_, err := p.inserter.InsertManyFast(ctx, jobs)
		return err
	})
}

func (p *riverPeer) insert(ctx context.Context, tx pgx.Tx, seq int) error {
	_, err := p.inserter.InsertTx(ctx, tx, newEvent(seq), nil)
	return err
}

func (p *riverPeer) launch(_ context.Context, c calls) (worker, error) {
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(func(_ context.Context, job *river.Job[event]) error {
		c.handled(job.Args.Seq, time.Time{})
		return nil
	}))
	config := p.config()
	config.Workers = workers
	config.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: p.workers}}
	return &riverWorker{peer: p, config: config}, nil
}

// riverWorker is River in this process.
type riverWorker struct {
	peer   *riverPeer
	config *river.Config
	pool   *pgxpool.Pool
	client *river.Client[pgx.Tx]
}

func (w *riverWorker) start(ctx context.Context) (err error) {
	w.pool, err = w.peer.db.ownPool(ctx, riverConns, w.peer.commit)
	if err != nil {
		return err
	}
	client, err := river.NewClient(riverpgxv5.New(w.pool), w.config)
	if err == nil {
		err = client.Start(context.WithoutCancel(ctx))
	}
	if err == nil {
		w.client = client
	}
	return err
}

func (w *riverWorker) stop() (err error) {
	if w.client != nil {
		ctx, cancel := context.WithTimeout(context.Background(), riverStop) // the run may have been cancelled
		defer cancel()
		err = w.client.Stop(ctx)
	}
	if w.pool != nil {
		w.pool.Close()
	}
	return err
}
