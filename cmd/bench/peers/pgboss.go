package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

const (
	// bossMarker stands for the data of a job in a statement.
	bossMarker = `{"peers":"data"}`
	// Queues of pg-boss: with LISTEN/NOTIFY and without.
	bossNotified, bossPolled = "bench_notified", "bench_polled"
)

// bossWork has the options of work(), page "Workers" of pg-boss's documentation. The default, 1 job every 2 seconds, is
// too slow for these measurements.
type bossWork struct {
	BatchSize        int     `json:"batchSize"`
	LocalConcurrency int     `json:"localConcurrency"`
	PollingInterval  float64 `json:"pollingIntervalSeconds"` // at least 0.5
	Burst            bool    `json:"burstWhenBatchFull"`
}

// bossVariant has a worker's settings.
type bossVariant struct {
	bossWork
	// notify wakes workers by LISTEN/NOTIFY: "Low-latency dispatch" on the page "Workers".
	notify bool
	commit commit
}

func (v bossVariant) queue() string {
	if v.notify {
		return bossNotified
	}
	return bossPolled
}

func (v bossVariant) String() string {
	woken := fmt.Sprintf("poll %g s", v.PollingInterval)
	if v.notify {
		woken = "notify"
	}
	return fmt.Sprintf("batchSize %d, localConcurrency %d, burst, %s, %s", v.BatchSize, v.LocalConcurrency, woken, v.commit)
}

// bossOptions returns the options of the constructor, page "Constructor". It turns cron jobs off, which are not measured.
func bossOptions(notify bool) map[string]any {
	return map[string]any{"schedule": false, "useListenNotify": notify}
}

// openBoss creates pg-boss's tables and queues. Its documentation has no figures. burstWhenBatchFull is the option for a
// backlog on the page "Workers", and 0.5 s is the shortest poll interval. A batchSize of 5000 was slower.
func openBoss(ctx context.Context, c *comparison, db database) ([]*variant, error) {
	out, err := c.node.migrate(ctx, script{file: "pgboss.mjs", url: db.url, settings: map[string]any{
		"boss":   bossOptions(true), // otherwise no statement would notify
		"marker": json.RawMessage(bossMarker),
		"queues": map[string]any{bossNotified: map[string]any{"notify": true}, bossPolled: map[string]any{}},
	}})
	if err != nil {
		return nil, err
	}

	var queues map[string]bossStatements
	if err := json.Unmarshal(out, &queues); err != nil {
		return nil, fmt.Errorf("pgboss.mjs migrate said %q: %w", lastLines(string(out)), err)
	}

	var all []*variant
	for _, v := range []struct {
		measures
		bossVariant
	}{
		{drains | latencies, bossVariant{bossWork{100, 1, 0.5, true}, true, commitDefault}},
		{drains | latencies | inserts, bossVariant{bossWork{1000, 1, 0.5, true}, true, commitOff}},
		{drains | latencies, bossVariant{bossWork{1000, 2, 0.5, true}, true, commitOff}},
		{drains | latencies | inserts, bossVariant{bossWork{1000, 1, 0.5, true}, false, commitOff}},
		{drains | latencies, bossVariant{bossWork{1000, 4, 0.5, true}, true, commitOff}},
	} {
		p := &bossPeer{bossVariant: v.bossVariant, db: db, node: c.node}
		if err := p.prepare(queues[p.queue()]); err != nil {
			return nil, err
		}
		all = append(all, &variant{name: "pg-boss", settings: v.String(), measures: v.measures, peer: p})
	}
	return all, nil
}

// bossStatements are the statements that pg-boss's send() and insert() execute in a transaction of an application, with
// the option db: page "Jobs". The bench's writers execute the same statements, so that the cost of writing does not
// include Node.js.
type bossStatements struct {
	Send   bossStatement `json:"send"`
	Insert bossStatement `json:"insert"`
}

// bossStatement has one parameter, a list of jobs as JSON.
type bossStatement struct {
	Text   string   `json:"text"`
	Values []string `json:"values"`

	before, after string // the parameter before and after the data
}

// cut splits the parameter at the data.
func (s *bossStatement) cut() error {
	if len(s.Values) != 1 {
		return fmt.Errorf("pg-boss inserts with %d parameters, not 1", len(s.Values))
	}
	var found bool
	s.before, s.after, found = strings.Cut(s.Values[0], bossMarker)
	if !found || !strings.HasPrefix(s.before, "[") || !strings.HasSuffix(s.after, "]") {
		return fmt.Errorf("pg-boss inserts %q", s.Values[0])
	}
	s.before, s.after = strings.TrimPrefix(s.before, "["), strings.TrimSuffix(s.after, "]")
	return nil
}

// parameter has jobs from..to-1.
func (s *bossStatement) parameter(from, to int) string {
	jobs := make([]string, 0, to-from)
	for seq := from; seq < to; seq++ {
		jobs = append(jobs, s.before+newEvent(seq).json()+s.after)
	}
	return "[" + strings.Join(jobs, ",") + "]"
}

// bossPeer is pg-boss.
type bossPeer struct {
	bossVariant
	db         database
	node       *node
	statements bossStatements
}

func (p *bossPeer) prepare(s bossStatements) error {
	p.statements = s
	return errors.Join(p.statements.Send.cut(), p.statements.Insert.cut())
}

func (p *bossPeer) tables() tables {
	return tables{
		names: []string{"pgboss.job"},
		left:  "SELECT EXISTS (SELECT FROM pgboss.job WHERE name = '" + p.queue() + "' AND state < 'completed')",
		done:  "SELECT count(*) FROM pgboss.job WHERE name = '" + p.queue() + "' AND state = 'completed'",
	}
}

func (p *bossPeer) preload(ctx context.Context, n int) error {
	return inBatches(n, func(from, to int) error {
		_, err := p.db.pool.Exec(ctx, p.statements.Insert.Text, p.statements.Insert.parameter(from, to))
		return err
	})
}

func (p *bossPeer) insert(ctx context.Context, tx pgx.Tx, seq int) error {
	_, err := tx.Exec(ctx, p.statements.Send.Text, p.statements.Send.parameter(seq, seq+1))
	return err
}

func (p *bossPeer) launch(ctx context.Context, c calls) (worker, error) {
	settings := map[string]any{"boss": bossOptions(p.notify), "queue": p.queue(), "work": p.bossWork, "times": c.times}
	return p.node.launch(ctx, script{file: "pgboss.mjs", url: p.db.url, settings: settings, commit: p.commit}, 1, c)
}
