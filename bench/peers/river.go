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
	// riverBatch is what River's own benchmark inserts at once.
	riverBatch = 5000
	// riverConns is more than River was ever seen to use; notifyd opens seven.
	riverConns = 20
	// riverStop is how long a client may take to stop.
	riverStop = 30 * time.Second
)

// riverSettings are what the variants of River differ in. Zero means River's
// default.
type riverSettings struct {
	workers  int
	cooldown time.Duration
	poll     time.Duration
	// commitOff gives River's own connections what notifyd's always have:
	// synchronous_commit = off.
	commitOff bool
}

func (s riverSettings) String() string {
	text := fmt.Sprintf("%d workers, ", s.workers)
	if s.cooldown == 0 {
		text += fmt.Sprintf("defaults: cooldown %v, poll %v", river.FetchCooldownDefault, river.FetchPollIntervalDefault)
	} else {
		text += fmt.Sprintf("cooldown %v, poll %v", s.cooldown, s.poll)
	}
	if s.commitOff {
		return text + ", sync_commit off"
	}
	return text + ", sync_commit on"
}

// riverPeer is River.
type riverPeer struct {
	riverSettings
	pool     *pgxpool.Pool // of the writers
	schema   string
	log      *slog.Logger
	inserter *river.Client[pgx.Tx]
}

// newRiver makes the client of the writers, too. It has the cooldown of the
// workers' one: River notifies at most once per cooldown and client.
func newRiver(b *bench, s riverSettings) (*riverPeer, error) {
	p := &riverPeer{riverSettings: s, pool: b.pool, schema: b.schema, log: b.log}
	var err error
	p.inserter, err = river.NewClient(riverpgxv5.New(p.pool), p.config())
	return p, err
}

func (p *riverPeer) config() *river.Config {
	return &river.Config{Schema: p.schema, Logger: p.log, FetchCooldown: p.cooldown, FetchPollInterval: p.poll}
}

func migrateRiver(ctx context.Context, b *bench) error {
	migrator, err := rivermigrate.New(riverpgxv5.New(b.pool), &rivermigrate.Config{Schema: b.schema, Logger: b.log})
	if err != nil {
		return err
	}
	_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	return err
}

func (p *riverPeer) tables() tables {
	jobs := pgx.Identifier{p.schema, "river_job"}.Sanitize()
	return tables{
		names: []string{jobs},
		left:  "SELECT EXISTS (SELECT FROM " + jobs + " WHERE state IN ('available', 'running', 'retryable', 'scheduled', 'pending'))",
		done:  "SELECT count(*) FROM " + jobs + " WHERE state = 'completed'",
	}
}

func (p *riverPeer) preload(ctx context.Context, n int) error {
	return inBatches(n, riverBatch, func(from, to int) error {
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

func (p *riverPeer) start(ctx context.Context, handle func(seq int)) (stop func() error, err error) {
	cfg := p.pool.Config()
	cfg.MaxConns = riverConns
	if p.commitOff {
		cfg.ConnConfig.RuntimeParams["synchronous_commit"] = "off"
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(func(_ context.Context, job *river.Job[event]) error {
		handle(job.Args.Seq)
		return nil
	}))
	config := p.config()
	config.Workers = workers
	config.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: p.workers}}
	client, err := river.NewClient(riverpgxv5.New(pool), config)
	if err == nil {
		err = client.Start(context.WithoutCancel(ctx))
	}
	if err != nil {
		pool.Close()
		return nil, err
	}
	return func() error {
		defer pool.Close()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), riverStop)
		defer cancel()
		return client.Stop(ctx)
	}, nil
}
