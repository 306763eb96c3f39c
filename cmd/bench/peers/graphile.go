package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// graphileSettings are options of graphile-worker's preset, page "Configuration" of its documentation.
type graphileSettings struct {
	ConcurrentJobs int            `json:"concurrentJobs,omitempty"`
	MaxPoolSize    int            `json:"maxPoolSize,omitempty"`
	LocalQueue     *graphileQueue `json:"localQueue,omitempty"`
	CompleteDelay  *int           `json:"completeJobBatchDelay,omitempty"` // ms
	FailDelay      *int           `json:"failJobBatchDelay,omitempty"`     // ms
}

type graphileQueue struct {
	Size int `json:"size"`
}

// batching returns graphile-worker's three settings for throughput, page "Performance".
func batching(jobs, queue, delay int) graphileSettings {
	return graphileSettings{
		ConcurrentJobs: jobs, MaxPoolSize: jobs + 1, LocalQueue: &graphileQueue{Size: queue}, CompleteDelay: &delay, FailDelay: &delay,
	}
}

// graphileVariant is the settings of a worker, and the number of processes with them.
type graphileVariant struct {
	graphileSettings
	processes int
	commit    commit
}

func (v graphileVariant) String() string {
	text := fmt.Sprintf("concurrentJobs %d, localQueue %d, batch delays %d ms", v.ConcurrentJobs, v.LocalQueue.Size, *v.CompleteDelay)
	if v.processes > 1 {
		text += fmt.Sprintf(", %d processes", v.processes)
	}
	return text + ", " + v.commit.String()
}

// openGraphile creates graphile-worker's tables. Its page "Performance" used 24, 500 and 0 for its figures,
// and starts with 10, 11 and 250. It measured four processes on sixteen cores; this bench runs one or two.
func openGraphile(ctx context.Context, c *comparison, db database) ([]*variant, error) {
	n := c.node
	if _, err := n.migrate(ctx, script{file: "graphile.mjs", url: db.url, settings: map[string]any{}}); err != nil {
		return nil, err
	}
	var all []*variant
	for _, v := range []struct {
		measures
		graphileVariant
	}{
		{drains | latencies, graphileVariant{batching(10, 11, 250), 1, commitDefault}},
		{drains | latencies, graphileVariant{batching(24, 500, 0), 1, commitDefault}},
		{drains | latencies | inserts, graphileVariant{batching(24, 500, 0), 1, commitOff}},
		{drains, graphileVariant{batching(24, 500, 0), 2, commitOff}},
		{drains, graphileVariant{batching(24, 2000, 0), 1, commitOff}},
	} {
		p := &graphilePeer{graphileVariant: v.graphileVariant, db: db, node: n}
		all = append(all, &variant{name: "graphile-worker", settings: v.String(), measures: v.measures, peer: p})
	}
	return all, nil
}

// graphilePeer is graphile-worker.
type graphilePeer struct {
	graphileVariant
	db   database
	node *node
}

func (p *graphilePeer) tables() tables {
	return tables{
		names: []string{"graphile_worker._private_jobs"},
		left:  "SELECT EXISTS (SELECT FROM graphile_worker._private_jobs)",
	}
}

// preload inserts as graphile-worker's own measurement does.
func (p *graphilePeer) preload(ctx context.Context, n int) error {
	type job struct {
		Identifier string `json:"identifier"`
		Payload    event  `json:"payload"`
	}
	return inBatches(n, func(from, to int) error {
		jobs := make([]job, 0, to-from)
		for seq := from; seq < to; seq++ {
			jobs = append(jobs, job{jobName, newEvent(seq)})
		}
		text, err := json.Marshal(jobs)
		if err == nil {
			_, err = p.db.pool.Exec(ctx, `SELECT count(*) FROM graphile_worker.add_jobs(
				ARRAY(SELECT json_populate_recordset(NULL::graphile_worker.job_spec, $1::json)))`, string(text))
		}
		return err
	})
}

// insert executes the statement of the page "Adding jobs through SQL".
func (p *graphilePeer) insert(ctx context.Context, tx pgx.Tx, seq int) error {
	_, err := tx.Exec(ctx, "SELECT graphile_worker.add_job($1, $2::json)", jobName, newEvent(seq).json())
	return err
}

func (p *graphilePeer) launch(ctx context.Context, c calls) (worker, error) {
	settings := map[string]any{"worker": p.graphileSettings, "times": c.times}
	return p.node.launch(ctx, script{file: "graphile.mjs", url: p.db.url, settings: settings, commit: p.commit}, p.processes, c)
}
