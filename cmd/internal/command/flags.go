package command

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/cmd/internal/config"
)

// The flags that several commands have. Each is declared here, once, so that a name has one meaning
// in the whole tree: TestVocabulary of cmd/notifyd checks it.

// AddSince adds --since: a lower bound in time.
func AddSince(cmd *cobra.Command, b *Bound) {
	cmd.Flags().Var(b, "since", "of this `time` or later: 2026-11-01T00:00:00Z, or an age such as 90m, 12h, 7d")
}

// AddUntil adds --until: an upper bound in time.
func AddUntil(cmd *cobra.Command, b *Bound) {
	cmd.Flags().Var(b, "until", "of this `time` or earlier: 2026-11-01T00:00:00Z, or an age such as 90m, 12h, 7d")
}

// AddAfter adds --after: where a page of a list begins.
func AddAfter(cmd *cobra.Command, row *string) {
	cmd.Flags().StringVar(row, "after", "", "begin behind this `row`, as the previous page prints it")
}

// AddLimit adds --limit: how many rows are shown.
func AddLimit(cmd *cobra.Command, n *int, most int) {
	cmd.Flags().IntVar(n, "limit", most, "most rows to show")
}

// AddScan adds --scan: how many rows are read.
func AddScan(cmd *cobra.Command, n *int, most int) {
	cmd.Flags().IntVar(n, "scan", most, "most rows to read, whatever they yield")
}

// AddWait adds --wait: stay until the outcome is known.
func AddWait(cmd *cobra.Command, wait *bool) {
	cmd.Flags().BoolVar(wait, "wait", false, "wait for the outcome, and exit with 1 unless all were delivered")
}

// AddTimeout adds --timeout: how long a command waits before it gives up.
func AddTimeout(cmd *cobra.Command, d *Duration, most time.Duration) {
	*d = Duration(most)
	cmd.Flags().Var(d, "timeout", "longest wait before giving up, a `duration`: 30s, 10m, 2d")
}

// AddDryRun adds --dry-run.
func AddDryRun(cmd *cobra.Command, dry *bool) {
	cmd.Flags().BoolVar(dry, "dry-run", false, "show what would be done")
}

// AddYes adds --yes.
func AddYes(cmd *cobra.Command, yes *bool) {
	cmd.Flags().BoolVarP(yes, "yes", "y", false, "do not ask")
}

// AddAll adds --all.
func AddAll(cmd *cobra.Command, all *bool) {
	cmd.Flags().BoolVar(all, "all", false, "all that the command is about, in place of a choice")
}

// AddActor adds --actor and --reason.
func AddActor(cmd *cobra.Command, actor, reason *string) {
	AddWho(cmd, actor)
	cmd.Flags().StringVar(reason, "reason", "", "`why`, for the audit and for colleagues")
}

// AddWho adds --actor alone, for a command whose actions have their reasons elsewhere.
func AddWho(cmd *cobra.Command, actor *string) {
	cmd.Flags().StringVar(actor, "actor", "", "`who` does it, for the audit; default: user@host")
}

// AddExitCode adds --exit-code.
func AddExitCode(cmd *cobra.Command, report *bool) {
	cmd.Flags().BoolVar(report, "exit-code", false, "report what was found by the exit code, too")
}

// AddDestination adds --destination.
func AddDestination(cmd *cobra.Command, name *string) {
	cmd.Flags().StringVar(name, "destination", "", "`name` of the destination")
}

// typeUsage describes --type.
const typeUsage = "event types that match this `pattern`: order.placed, order.*, *"

// AddType adds --type.
func AddType(cmd *cobra.Command, pattern *string) {
	cmd.Flags().StringVar(pattern, "type", "", typeUsage)
}

// AddTypes adds --type where it may be repeated.
func AddTypes(cmd *cobra.Command, patterns *[]string) {
	cmd.Flags().StringArrayVar(patterns, "type", nil, typeUsage)
}

// AddAggregate adds --aggregate.
func AddAggregate(cmd *cobra.Command, aggregate *string) {
	cmd.Flags().StringVar(aggregate, "aggregate", "", "aggregate of the event, as `TYPE/ID`: order/1042")
}

// AddRate adds --rate.
func AddRate(cmd *cobra.Command, rate *float64) {
	cmd.Flags().Float64Var(rate, "rate", 0, "most `events` per second; 0 means no limit")
}

// AddMode adds --mode.
func AddMode(cmd *cobra.Command, mode *string, normal string) {
	cmd.Flags().StringVar(mode, "mode", normal, "how relays read outbox_events: `mode` queue or stream")
}

// AddDatabaseURL adds --database-url.
func AddDatabaseURL(cmd *cobra.Command, url *string) {
	cmd.Flags().StringVar(url, "database-url", "", "connection `string` of the database, in place of those of the file and of DATABASE_URL")
}

// AddOutbox adds --outbox.
func AddOutbox(cmd *cobra.Command, name *string) {
	cmd.Flags().StringVar(name, "outbox", "", "`name` of one of the outboxes of the file, where it has many")
}

// ErrNotTime is the error about text that is neither a time nor an age.
var ErrNotTime = errors.New("not a time: write 2026-11-01T00:00:00Z, or an age such as 90m, 12h or 7d")

// ParseTime reads a time of RFC 3339, or one as [cli.Moment] prints it, with a space in place of the T.
func ParseTime(s string) (time.Time, error) {
	for _, layout := range []string{time.RFC3339, "2006-01-02 15:04:05Z07:00"} {
		if t, err := time.Parse(layout, s); err == nil {
			return t, nil
		}
	}
	return time.Time{}, ErrNotTime
}

// Bound is a flag with a point in time, as a time or as an age. At most one field is set.
type Bound struct {
	// Age counts back from the present of the database.
	Age time.Duration
	// At is a time.
	At time.Time

	text string
}

// IsZero reports whether the flag was not given.
func (b *Bound) IsZero() bool { return b.text == "" }

// String implements pflag.Value.
func (b *Bound) String() string { return b.text }

// Type implements pflag.Value.
func (*Bound) Type() string { return "time" }

// Set implements pflag.Value.
func (b *Bound) Set(s string) error {
	at, err := ParseTime(s)
	if err == nil {
		*b = Bound{At: at, text: s}
		return nil
	}

	age, err := config.ParseDuration(s)
	switch {
	case err != nil:
		return ErrNotTime
	case age <= 0:
		return errors.New("an age must be longer than 0")
	}

	*b = Bound{Age: age, text: s}
	return nil
}

// Place returns the text that package ops takes for a place in a stream: beginning, now, an id or a
// time. An age becomes the time that it means at now.
func Place(s string, now time.Time) string {
	var b Bound
	if b.Set(s) != nil {
		return s
	}

	if b.Age > 0 {
		b.At = now.Add(-b.Age)
	}
	return b.At.Format(time.RFC3339Nano)
}

// Duration is a flag with a time span above 0, in days too.
type Duration time.Duration

// String implements pflag.Value.
func (d *Duration) String() string {
	if *d == 0 {
		return ""
	}
	return time.Duration(*d).String()
}

// Set implements pflag.Value.
func (d *Duration) Set(s string) error {
	parsed, err := config.ParseDuration(s)
	if err == nil && parsed <= 0 {
		err = errors.New("must be longer than 0")
	}

	*d = Duration(parsed)
	return err
}

// Type implements pflag.Value.
func (*Duration) Type() string { return "duration" }

// LateError returns the cause of a context that ends after --timeout.
func (d *Duration) LateError() error { return fmt.Errorf("after %v", time.Duration(*d)) }
