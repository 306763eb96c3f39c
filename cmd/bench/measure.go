package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/cmd/internal/bench"
)

// errBench is returned after a bench whose result is not OK.
var errBench = errors.New("events were lost, or out of order")

// measure runs an experiment with the common options and prints its result.
func (p *program) measure(cmd *cobra.Command, x bench.Experiment) error {
	p.started = true
	out := cmd.OutOrStdout()
	if p.asJSON {
		out = cmd.ErrOrStderr() // standard output has only the result
	}
	ctx, stop := untilSignal(cmd.Context())
	defer stop()
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}

	var result *bench.Result
	err = p.profiled(func() (err error) {
		result, err = bench.Measure(ctx, bench.Options{
			DatabaseURL: p.database, Force: p.force, Out: out, Log: p.log(cmd), Relay: []string{self, "relay"},
		}, x)
		return err
	})
	if err != nil {
		return err
	}
	if p.asJSON {
		encoder := json.NewEncoder(cmd.OutOrStdout())
		encoder.SetEscapeHTML(false) // the names of figures have arrows
		if err := encoder.Encode(result); err != nil {
			return err
		}
	}
	if !result.OK() {
		return errBench
	}
	return nil
}

// profiled calls run and writes the requested profiles.
func (p *program) profiled(run func() error) (err error) {
	if p.cpuProfile != "" {
		file, err := os.Create(p.cpuProfile)
		if err != nil {
			return err
		}
		if err := pprof.StartCPUProfile(file); err != nil {
			return errors.Join(err, file.Close())
		}
		defer func() {
			pprof.StopCPUProfile()
			err = errors.Join(err, file.Close())
		}()
	}
	if p.memProfile == "" {
		return run()
	}
	if err := run(); err != nil {
		return err
	}
	file, err := os.Create(p.memProfile)
	if err != nil {
		return err
	}
	runtime.GC() // so that the profile includes the latest frees
	return errors.Join(pprof.Lookup("allocs").WriteTo(file, 0), file.Close())
}
