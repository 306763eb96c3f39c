package inspect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/notifyd/notifyd/cmd/internal/command"

	"github.com/notifyd/notifyd/cmd/internal/daemon"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/internal/admin"
)

// NewHealthcheck returns the command healthcheck.
func NewHealthcheck(a *command.App) *cobra.Command {
	var timeout command.Duration
	cmd := &cobra.Command{
		Use:   "healthcheck",
		Short: "Ask a running notifyd whether it is ready",
		Long: `healthcheck asks /readyz of the address in admin.listen, on this machine, and
exits with 0 if the relay is ready. Otherwise it exits with 1 and prints the
reason. It is made for the HEALTHCHECK of a container that has no shell. It sends
admin.token, and with TLS requires the certificate of admin.tls.cert_file.`,
		Example: "  notifyd healthcheck\n  notifyd healthcheck -c /etc/notifyd/config.yaml --timeout 1s",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, path, err := a.Load()
			if err != nil {
				return errors.New(err.Error()) // 1 and not 78: Docker knows no other code
			}

			address, err := Reachable(c.Admin.Listen)
			if err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}

			access := admin.Access{Address: address, CertFile: daemon.AdminFiles(c, path).Cert, Token: c.Admin.Token}
			text, err := askReady(cmd.Context(), access, time.Duration(timeout))
			if err != nil {
				return err
			}

			_, err = io.WriteString(cmd.OutOrStdout(), text)
			return err
		},
	}

	command.AddTimeout(cmd, &timeout, 3*time.Second)
	return cmd
}

// Reachable returns the address by which this machine reaches a server that
// listens on the given one, which may be all of its addresses.
func Reachable(listen string) (string, error) {
	if listen == "" {
		return "", errors.New("admin.listen: missing, so no relay can be asked: set it, to 127.0.0.1:9470 for example")
	}

	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return "", fmt.Errorf("admin.listen: %w", err)
	}

	if port == "0" {
		return "", errors.New("admin.listen: port 0 is another one at each start: choose one")
	}

	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
		if ip != nil && ip.To4() == nil {
			host = "::1"
		}
	}

	return net.JoinHostPort(host, port), nil
}

// askReady returns the server's answer if it is ready, and else an error with the
// failed checks.
func askReady(ctx context.Context, a admin.Access, timeout time.Duration) (text string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no answer within %v", timeout))
	defer cancel()

	code, body, err := a.Get(ctx, "/readyz?verbose")
	if err != nil {
		return "", err
	}

	if code != http.StatusOK {
		return "", fmt.Errorf("notifyd at %s is not ready (%d %s):\n%s",
			a.Address, code, http.StatusText(code), strings.TrimSpace(string(body)))
	}
	return string(body), nil
}
