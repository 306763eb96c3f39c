package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/internal/admin"
)

func newWakeCmd(a *app) *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "wake",
		Short: "End the rest of a relay on this machine",
		Long: `wake tells the relay at the address in admin.listen, on this machine, to look for
events now: with relay.rest, it may have no connection to the database, and hear of
none. A relay that is awake stays so for a while. It sends admin.token, and with TLS
requires the certificate of admin.tls.cert_file. POST /wake does the same from
elsewhere.`,
		Example: "  notifyd wake\n  notifyd wake -c /etc/notifyd/config.yaml",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if timeout <= 0 {
				return usageErrorf("--timeout must be longer than 0")
			}
			c, path, err := a.load()
			if err != nil {
				return err
			}
			address, err := reachable(c.Admin.Listen)
			if err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			return askToWake(cmd.Context(), admin.Access{Address: address, CertFile: adminFiles(c, path).Cert, Token: c.Admin.Token}, timeout)
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", 3*time.Second, "longest `time` to wait for the answer")
	return cmd
}

func askToWake(ctx context.Context, a admin.Access, timeout time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no answer within %v", timeout))
	defer cancel()
	code, body, err := a.Post(ctx, "/wake")
	switch {
	case err != nil:
		return err
	case code == http.StatusNotFound:
		return errors.New("what answers at " + a.Address + " has no /wake: it is not a relay, or an older one")
	case code != http.StatusOK:
		return fmt.Errorf("notifyd at %s: %d %s: %s", a.Address, code, http.StatusText(code), strings.TrimSpace(string(body)))
	}
	return nil
}
