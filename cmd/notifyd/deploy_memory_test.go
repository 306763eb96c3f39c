package main

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestChartMemory: the memory limits of the chart and of the unit are the one that docs/deploy.md demands for the defaults.
func TestChartMemory(t *testing.T) {
	t.Parallel()
	values, page := testenv.ReadFile(t, "../../deploy/helm/notifyd/values.yaml"), testenv.ReadFile(t, "../../docs/deploy.md")
	printed := invoke(t, "config", "print", "-c", file(t, "version: 1\ndestinations: {d: {type: log}}\nroutes: [{match: '*', to: d}]\n"))
	number := func(text, pattern string) int {
		t.Helper()
		found := regexp.MustCompile(pattern).FindStringSubmatch(text)
		if found == nil {
			t.Fatalf("%s is missing in\n%s", pattern, text)
		}
		n, err := strconv.Atoi(found[1])
		if err != nil {
			t.Fatal(err)
		}
		return n
	}

	limit := number(values, `limits:\n    memory: (\d+)Mi`)
	event, connections := number(printed.stdout, `max_event_bytes: (\d+)`), number(printed.stdout, `connections: (\d+)`)
	if want := 64 + 6*event*connections>>20; limit != want {
		t.Errorf("the limit of the chart is %d MiB, and the defaults need %d", limit, want)
	}
	if unit := number(testenv.ReadFile(t, "../../deploy/systemd/notifyd.service"), `\nMemoryMax=(\d+)M\n`); unit != limit {
		t.Errorf("the limit of the unit is %d MiB, and the one of the chart %d", unit, limit)
	}
	if want := "64 MiB + 6 × " + strconv.Itoa(event>>20) + " MiB × " + strconv.Itoa(connections) + " = " + strconv.Itoa(limit) + " MiB"; !strings.Contains(page, want) {
		t.Errorf("docs/deploy.md lacks %q", want)
	}
}
