package daemon

import (
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/notifyd/notifyd/internal/cli"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/internal/admin"
)

// NeedRestart returns the changed settings of parts that outlive reloads: those of the
// admin server.
func NeedRestart(first, c *config.Config) (settings []string) {
	hadToken := !first.Admin.Token.IsZero()
	hadReadOnlyToken := !first.Admin.ReadOnlyToken.IsZero()

	for _, change := range config.Diff(first, c).Settings {
		switch {
		case !strings.HasPrefix(change.Path, "admin."):
		case change.Path == "admin.token" && hadToken && !c.Admin.Token.IsZero(): // replaced
		case change.Path == "admin.read_only_token" && hadReadOnlyToken && !c.Admin.ReadOnlyToken.IsZero():
		default:
			settings = append(settings, change.Path)
		}
	}
	return settings
}

// reloadState is the outcome of the last reload. It is safe for several goroutines.
type reloadState struct {
	mu      sync.Mutex
	success bool
	read    time.Time // when the configuration in force was read
	problem string    // "" for none
}

func (r *reloadState) failed(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.success = false
	r.problem = "the last reload failed, the previous configuration is in force: " + cli.OneLine(err)
}

func (r *reloadState) succeeded(restart []string) {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.success = true
	r.read = time.Now()
	r.problem = ""
	if len(restart) > 0 {
		r.problem = "a restart is needed for " + strings.Join(restart, ", ")
	}
}

// check is a line of /readyz. The relay works, so that it is advice only.
func (r *reloadState) check() admin.Check {
	return admin.Check{Name: "configuration", Advisory: true, Do: func() error {
		r.mu.Lock()
		defer r.mu.Unlock()

		if r.problem == "" {
			return nil
		}
		return errors.New(r.problem)
	}}
}

// metrics are the figures for Prometheus.
func (r *reloadState) metrics() []prometheus.Collector {
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
			r.mu.Lock()
			defer r.mu.Unlock()
			return value()
		})
	}
	return []prometheus.Collector{
		gauge("notifyd_config_last_reload_successful", "1 if the last reload of the configuration was successful, or there was none.",
			func() float64 { return truth(r.success) }),
		gauge("notifyd_config_last_reload_success_timestamp_seconds", "When the configuration in force was read, in seconds since 1970.",
			func() float64 { return float64(r.read.UnixMilli()) / 1000 }),
	}
}

// truth is a condition as a figure of Prometheus.
func truth(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
