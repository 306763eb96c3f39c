package integration

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// envVictim makes this test binary a relay on the given database, whose handler
// never answers. Tests start it to kill it.
const envVictim = "NOTIFYD_TEST_VICTIM_URL"

// envVictimBudget is the lock budget of that relay.
const envVictimBudget = "NOTIFYD_TEST_VICTIM_BUDGET"

// victimReady is the output of a victim that listens and claims.
const victimReady = "ready"

// victim runs the relay; it prints the id of each event that its handler gets.
func victim(url string) {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		panic(err)
	}
	budget, err := time.ParseDuration(os.Getenv(envVictimBudget))
	if err != nil {
		panic(err)
	}
	relay, err := notifyd.New(pool, notifyd.Config{LockBudget: budget})
	if err != nil {
		panic(err)
	}
	err = relay.Handle("*", notifyd.Destination{Name: "all", Handler: delivery.HandlerFunc(func(ctx context.Context, e *delivery.Event) error {
		fmt.Println(e.ID)
		<-ctx.Done()
		return ctx.Err()
	}), Lane: delivery.Lane{Timeout: time.Hour}})
	if err != nil {
		panic(err)
	}
	go func() {
		<-relay.Ready()
		fmt.Println(victimReady)
	}()
	panic(relay.Run(ctx))
}

// startVictim starts such a process, waits until it is ready and returns it with the lines it prints.
func (e *env) startVictim(budget time.Duration) (cmd *exec.Cmd, lines <-chan string) {
	e.t.Helper()
	cmd = e.victim(budget)
	lines = e.run(cmd)
	if line := testenv.Receive(e.t, patience, "a line of the relay that is to be killed", lines); line != victimReady {
		e.t.Fatalf("the relay printed %s before it was ready", line)
	}
	return cmd, lines
}

// victim returns the command of such a process.
func (e *env) victim(budget time.Duration) *exec.Cmd {
	e.t.Helper()
	self, err := os.Executable()
	if err != nil {
		e.t.Fatal(err)
	}
	cmd := exec.CommandContext(e.ctx, self)
	cmd.Env = append(os.Environ(), envVictim+"="+e.url, envVictimBudget+"="+budget.String())
	cmd.Stderr = os.Stderr
	return cmd
}

// run starts a victim. Its last lines are lost if they are not read.
func (e *env) run(cmd *exec.Cmd) (lines <-chan string) {
	e.t.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		e.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		e.t.Fatal(err)
	}
	ch := make(chan string, 100)
	read := make(chan struct{})
	go func() {
		defer close(read)
		for s := bufio.NewScanner(out); s.Scan(); {
			select {
			case ch <- s.Text():
			default: // the first ones are enough
			}
		}
	}()
	e.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-read
		_ = cmd.Wait()
	})
	return ch
}
