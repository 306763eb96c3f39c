// Package interplay plays random configurations and scripts against a model: destinations of all orders and settings,
// writers, retries, dead letters, replays, seeks, pauses, other routes, conversions of the table, and relays that are
// killed. The model knows for every event and destination which outcomes are allowed.
//
// A normal run plays the same configurations each time. NOTIFYD_INTERPLAY_COUNT plays so many others,
// NOTIFYD_INTERPLAY_SEED repeats one, and NOTIFYD_INTERPLAY_STEPS plays only some steps of its script.
package interplay

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

const (
	// envCount names the environment variable with the number of configurations.
	envCount = "NOTIFYD_INTERPLAY_COUNT"
	// envSeed names the environment variable with the seed of the one configuration to play.
	envSeed = "NOTIFYD_INTERPLAY_SEED"
	// envSteps names the environment variable with the numbers of the steps to play, such as 0,3,7.
	envSteps = "NOTIFYD_INTERPLAY_STEPS"

	// usualCount is the number of configurations of a normal run. Thousands find more: NOTIFYD_INTERPLAY_COUNT.
	usualCount = 200
	// shortCount is the number of configurations with -short.
	shortCount = 10
	// usualSeed is the first seed of a normal run.
	usualSeed = 9000
	// atOnce is how many configurations are played at the same time.
	atOnce = 8
	// shrinks is how many scripts are tried to find a shorter one that fails.
	shrinks = 60
	// shrinkFor is how long that may take, about.
	shrinkFor = time.Minute
)

func TestMain(m *testing.M) {
	// Configurations wait most of the time, for leases and pauses: the command line is for other packages.
	flag.Parse()
	if err := flag.Set("test.parallel", strconv.Itoa(atOnce)); err != nil {
		panic(err)
	}
	// pgx asks the server to cancel what a closed connection had under way, for up to 15 s.
	testenv.Main(m, goleak.IgnoreAnyFunction("github.com/jackc/pgx/v5/pgconn.(*PgConn).CancelRequest"))
}

// TestInterplay: whatever is configured, and whatever happens, each event has one of the outcomes that the promises
// allow.
func TestInterplay(t *testing.T) {
	t.Parallel()
	seed, repeats := setting(t, envSeed)
	count, given := setting(t, envCount)
	switch {
	case !given && repeats:
		count = 1
	case !given && testing.Short():
		count = shortCount
	case !given:
		count = usualCount
	}
	switch {
	case repeats:
	case given:
		seed = rand.Uint64() >> 32 << 12
	default:
		seed = usualSeed // a run that anybody can repeat; a count asks for others
	}
	t.Logf("%d configurations, the first is %s=%d", count, envSeed, seed)
	for i := range count {
		t.Run(strconv.FormatUint(seed+i, 10), func(t *testing.T) {
			t.Parallel()
			p := newPlan(seed + i)
			steps := chosen(t, p)
			if err := play(t, p.only(steps)); err != nil {
				complain(t, p, steps, err)
			}
		})
	}
}

// setting returns a number of the environment.
func setting(t *testing.T, name string) (value uint64, given bool) {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return 0, false
	}
	value, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return value, true
}

// chosen returns the numbers of the steps to play.
func chosen(t *testing.T, p *plan) (steps []int) {
	t.Helper()
	text := os.Getenv(envSteps)
	if text == "" {
		for i := range p.steps {
			steps = append(steps, i)
		}
		return steps
	}
	for word := range strings.SplitSeq(text, ",") {
		i, err := strconv.Atoi(word)
		if err != nil || i >= len(p.steps) {
			t.Fatalf("%s: there is no step %q", envSteps, word)
		}
		steps = append(steps, i)
	}
	return steps
}

// only returns the plan with some of its steps.
func (p *plan) only(steps []int) *plan {
	shorter := *p
	shorter.steps = nil
	for _, i := range steps {
		shorter.steps = append(shorter.steps, p.steps[i])
	}
	return &shorter
}

// complain reports the shortest script that was found to fail.
func complain(t *testing.T, p *plan, steps []int, err error) {
	t.Helper()
	tries := shrinks
	if os.Getenv(envSteps) != "" {
		tries = 0
	}
	end := time.Now().Add(shrinkFor)
	for again := true; again; {
		again = false
		for i := len(steps) - 1; i >= 0 && tries > 0 && time.Now().Before(end); i-- {
			fewer := append(append([]int(nil), steps[:i]...), steps[i+1:]...)
			tries--
			t.Run(fmt.Sprintf("shorter %d", shrinks-tries), func(t *testing.T) {
				if shorter := play(t, p.only(fewer)); shorter != nil {
					steps, err, again = fewer, shorter, true
				}
			})
		}
	}
	var numbers []string
	for _, i := range steps {
		numbers = append(numbers, strconv.Itoa(i))
	}
	t.Errorf("repeat with %s=%d %s=%s\n%v\n%v", envSeed, p.seed, envSteps, strings.Join(numbers, ","), p.only(steps), err)
}
