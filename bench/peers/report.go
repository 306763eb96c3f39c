package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
)

// result is what --json prints. Medians are over the rounds.
type result struct {
	Events        int    `json:"events"`
	LatencyEvents int    `json:"latency_events"`
	Rate          int    `json:"rate"`
	Rounds        int    `json:"rounds"`
	River         string `json:"river"`
	Go            string `json:"go"`
	CPUs          int    `json:"cpus"`
	Private       bool   `json:"private_server"`
	Server        server `json:"server"`

	Drain   []drainResult   `json:"drain,omitempty"`   // notifyd first
	Latency []latencyResult `json:"latency,omitempty"` // notifyd first
}

type server struct {
	Version           string `json:"version"`
	SynchronousCommit string `json:"synchronous_commit"`
	Fsync             string `json:"fsync"`
	SharedBuffers     string `json:"shared_buffers"`
}

type drainResult struct {
	System        string    `json:"system"`
	Settings      string    `json:"settings"`
	CommitOff     bool      `json:"synchronous_commit_off"`
	PerSecond     float64   `json:"events_per_second"`
	EachPerSecond []float64 `json:"each"`
	Repeats       int64     `json:"repeats"` // calls beyond one per event, in all rounds
	// Ratio is notifyd's rate by this one.
	Ratio float64 `json:"notifyd_ratio"`
}

type latencyResult struct {
	System    string    `json:"system"`
	Settings  string    `json:"settings"`
	CommitOff bool      `json:"synchronous_commit_off"`
	Median    summary   `json:"median"`
	Each      []summary `json:"each"`
	// RatioP50 and RatioP99 are this system's latency by notifyd's.
	RatioP50 float64 `json:"ratio_p50"`
	RatioP99 float64 `json:"ratio_p99"`
}

// summary has milliseconds, from the return of COMMIT to the handler; WriteP50
// is the writer's transaction from BEGIN to the return of COMMIT.
type summary struct {
	P50      float64 `json:"p50_ms"`
	P95      float64 `json:"p95_ms"`
	P99      float64 `json:"p99_ms"`
	Max      float64 `json:"max_ms"`
	WriteP50 float64 `json:"write_p50_ms"`
}

// compare fills in medians and ratios.
func (r *result) compare() {
	for i := range r.Drain {
		d := &r.Drain[i]
		d.PerSecond = math.Round(median(d.EachPerSecond))
		d.Ratio = ratio(r.Drain[0].PerSecond, d.PerSecond)
	}
	for i := range r.Latency {
		l := &r.Latency[i]
		of := func(field func(summary) float64) float64 {
			values := make([]float64, 0, len(l.Each))
			for _, s := range l.Each {
				values = append(values, field(s))
			}
			return median(values)
		}
		l.Median = summary{
			P50: of(func(s summary) float64 { return s.P50 }), P95: of(func(s summary) float64 { return s.P95 }),
			P99: of(func(s summary) float64 { return s.P99 }), Max: of(func(s summary) float64 { return s.Max }),
			WriteP50: of(func(s summary) float64 { return s.WriteP50 }),
		}
		l.RatioP50 = ratio(l.Median.P50, r.Latency[0].Median.P50)
		l.RatioP99 = ratio(l.Median.P99, r.Latency[0].Median.P99)
	}
}

func (r *result) print(out io.Writer) error {
	where := "a server of yours"
	if r.Private {
		where = "private"
	}
	var head, rows, tail strings.Builder
	fmt.Fprintf(&head, "notifyd (this tree) and River %s, %s, %d CPUs, PostgreSQL %s (%s): synchronous_commit %s, fsync %s, shared_buffers %s\n",
		r.River, r.Go, r.CPUs, r.Server.Version, where, r.Server.SynchronousCommit, r.Server.Fsync, r.Server.SharedBuffers)
	fmt.Fprintf(&head, "median of %d round(s); writers as the server has it; sync_commit below is about the systems' own connections\n\n", r.Rounds)
	if len(r.Drain) > 0 {
		r.drainRows(&rows)
		r.verdict(&tail)
	}
	if len(r.Latency) > 0 {
		r.latencyRows(&rows)
	}
	table := tabwriter.NewWriter(&head, 0, 0, 2, ' ', 0)
	if _, err := io.WriteString(table, rows.String()); err != nil {
		return err
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := io.WriteString(out, head.String()+"\n"+tail.String())
	return err
}

func (r *result) drainRows(rows *strings.Builder) {
	fmt.Fprintf(rows, "DRAIN of %d events\tevents/s\tnotifyd is\teach round\tsettings\n", r.Events)
	for _, d := range r.Drain {
		fmt.Fprintf(rows, "%s\t%.0f\t%.1fx\t%s\t%s\n", d.System, d.PerSecond, d.Ratio, join(d.EachPerSecond), d.Settings)
	}
	fmt.Fprintln(rows, "\t\t\t\t")
}

func (r *result) latencyRows(rows *strings.Builder) {
	fmt.Fprintf(rows, "LATENCY at %d/s, ms\tp50 / p99\tto notifyd\tp95 / max / write p50\tsettings\n", r.Rate)
	for _, l := range r.Latency {
		m := l.Median
		fmt.Fprintf(rows, "%s\t%.2f / %.2f\t%.1fx / %.1fx\t%.2f / %.1f / %.2f\t%s\n",
			l.System, m.P50, m.P99, l.RatioP50, l.RatioP99, m.P95, m.Max, m.WriteP50, l.Settings)
	}
}

// verdict names River's best settings, and the best single runs: other work on
// the machine makes a run slower and never faster.
func (r *result) verdict(tail *strings.Builder) {
	ours := slices.Max(r.Drain[0].EachPerSecond)
	for _, commitOff := range []bool{false, true} {
		var best drainResult
		var fastest float64
		for _, d := range r.Drain[1:] {
			if d.CommitOff != commitOff {
				continue
			}
			if d.PerSecond > best.PerSecond {
				best = d
			}
			fastest = max(fastest, slices.Max(d.EachPerSecond))
		}
		fmt.Fprintf(tail, "River's best median: %.0f/s (%s), notifyd is %.1fx; best single runs: %.0f/s and %.0f/s, %.1fx\n",
			best.PerSecond, best.Settings, best.Ratio, fastest, ours, ratio(ours, fastest))
	}
	for _, d := range r.Drain {
		if d.Repeats > 0 {
			fmt.Fprintf(tail, "%s (%s) called the handler %d times too often\n", d.System, d.Settings, d.Repeats)
		}
	}
}

func join(rates []float64) string {
	texts := make([]string, 0, len(rates))
	for _, rate := range rates {
		texts = append(texts, fmt.Sprintf("%.0f", rate))
	}
	return strings.Join(texts, " ")
}

// ratio is 0 where there is none.
func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return math.Round(a/b*100) / 100
}

// median does not change values.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// percentile returns the smallest value that at least the share p of all is
// not above.
func percentile(sorted []float64, p float64) float64 {
	i := int(math.Ceil(float64(len(sorted))*p)) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}
