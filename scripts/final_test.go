package scripts

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// finalWords are the messages of tests about events that are lost, overtake others or come
// too often, with their files.
var finalWords = []struct {
	file, format string
	args         []any
}{
	{"integration/order_observer_test.go", "event %d was lost at %s", []any{7, "a"}},
	{"integration/order_observer_test.go", "%d events, %d sights, %d deliveries made again, %d out of order", []any{9, 9, 0, 3}},
	{"integration/order_observer_test.go", "%s of relay %s began with %d of %s at %v, before %d was done with", []any{"a", "1", 8, "b/1", "2s", 7}},
	{"integration/order_observer_test.go", "%s of relay %s began with %d of %s at %v after %d, and not with %d", []any{"a", "1", 8, "b/1", "2s", 6, 7}},
	{"integration/order_observer_test.go", "%s was left with %d of %s, after %d", []any{"a", 7, "b/1", 8}},
	{"integration/order_observer_test.go", "%s saw event %d, which is not in the table", []any{"a", 7}},
	{"integration/chaos/chaos_test.go", "%d lost, %d out of order, %d dead", []any{10, 0, 0}},
	{"integration/chaos/chaos_test.go", "%d lost, %d out of order, %d dead", []any{0, 10, 0}},
	{"integration/chaos/chaos_test.go", "event %d never came", []any{7}},
	{"integration/chaos/chaos_test.go", "event %d of %s came after %d", []any{7, "b/1", 8}},
	{"integration/chaos/chaos_test.go", "%d came twice, and no more than %d were in flight", []any{20, 10}},
	{"integration/bell_play_test.go", "event %d was delivered %d times", []any{7, 0}},
	{"integration/bell_play_test.go", "%d events were delivered, %d are committed", []any{7, 8}},
	{"integration/env_test.go", "%d of %d events were delivered", []any{7, 8}},
	{"integration/env_test.go", "%d calls for %d events", []any{9, 8}},
	{"integration/partitions_test.go", "%d of %d events were lost", []any{1, 8}},
	{"integration/webhook_test.go", "%d of %d events came", []any{7, 8}},
	{"integration/webhook_test.go", "%d copies: want some, but no more than were under way", []any{40}},
	{"integration/longoutage_test.go", "%d of %d events came, and %d copies", []any{8, 8, 40}},
	{"integration/rabbitmq_test.go", "%d different events have arrived, want %d", []any{7, 8}},
	{"integration/rabbitmq_test.go", "%d duplicates after %d faults", []any{900, 2}},
	{"integration/rabbitmq_test.go", "%s: the handler has changed the order of what it was given", []any{"a"}},
	{"integration/rabbitmq_test.go", "%d events came for the first time behind a later one of their key", []any{1}},
	{"integration/redisnats_test.go", "%d different events have arrived, want %d", []any{7, 8}},
	{"integration/kafka_test.go", "%d different events of %d keys are in the topic, want %d of %d", []any{7, 2, 8, 2}},
	{"integration/kafka_test.go", "key %s is in another order than it was delivered in", []any{"a"}},
	{"integration/kafka_test.go", "key %s: %d events came for the first time behind a later one", []any{"a", 1}},
	{"integration/priority_test.go", "%d deliveries came twice", []any{1}},
	{"integration/priority_test.go", "%d events came before an earlier one of their aggregate", []any{1}},
	{"internal/queue/model_test.go", "%d violations:", []any{1}},
	{"internal/queue/salvage_test.go", "%d events were delivered by both", []any{20}},
	{"bench/measure.go", "events were lost", nil},
	{"cmd/notifyd/order_test.go", "%s: %v went past a dead letter", []any{"a", []int{7}}},
	{"cmd/notifyd/order_test.go", "%v went past the first", []any{[]int{7}}},
	{"internal/bench/bench_test.go", "result %+v", []any{struct{ Lost int }{3}}},
}

// TestFinalWords: each message of the tests matches an expression of test-final, and each
// expression matches a message.
func TestFinalWords(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("test-final")
	if err != nil {
		t.Fatal(err)
	}
	unused := strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
	if slices.Contains(unused, "") {
		t.Fatal("an empty line matches every message")
	}
	var all strings.Builder
	for _, w := range finalWords {
		source, err := os.ReadFile(filepath.Join("..", w.file))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(source), `"`+w.format) {
			t.Errorf("%s does not say %q any more: change it here and in test-final", w.file, w.format)
		}
		fmt.Fprintf(&all, "    x_test.go:1: "+w.format+"\n", w.args...)
	}
	if left := grep(t, all.String(), "-v", "-f", "test-final"); left != "" {
		t.Errorf("no expression is for:\n%s", left)
	}
	for _, e := range unused {
		if grep(t, all.String(), "-e", e) == "" {
			t.Errorf("no message matches %q", e)
		}
	}
	const harmless = `0 lost, 0 out of order, 2 dead:
0 copies: want some, but no more than were under way
| fault | load | written | lost | out of order | twice | at most | longest silence | resumed after |
9 events, 0 of them in the old table, 0 lost, 3 delivered twice
result {Lost:0 Duplicates:0}
level=WARN msg="the claim was lost" error="connection reset"
within 1m0s it did not come to this: everything is done
`
	if found := grep(t, harmless, "-f", "test-final"); found != "" {
		t.Errorf("test-final takes these for lost events:\n%s", found)
	}
}

// grep returns the lines of text that grep -E prints.
func grep(t *testing.T, text string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "grep", append([]string{"-E"}, args...)...)
	cmd.Stdin = strings.NewReader(text)
	out, err := cmd.Output()
	if err != nil && cmd.ProcessState.ExitCode() != 1 { // 1: no match
		t.Fatal(err)
	}
	return string(out)
}
