package outboxes

import (
	"context"
	"net"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd/cmd/internal/config"
)

// identify makes each connection of cfg ask for its password when it is made, as database.password_command or
// database.aws_region has it. A connection string with a password needs none. pgx has no hook for a password; this one
// runs before the login, on a copy of the configuration that belongs to one connection.
func identify(cfg *pgx.ConnConfig, text string, d *config.Database) {
	password := d.Password()
	if password == nil || hasPassword(text) {
		return
	}

	next := cfg.AfterNetConnect
	cfg.AfterNetConnect = func(ctx context.Context, own *pgconn.Config, conn net.Conn) (net.Conn, error) {
		secret, err := password(ctx, net.JoinHostPort(own.Host, strconv.Itoa(int(own.Port))), own.User)
		if err != nil {
			return conn, err
		}

		own.Password = secret
		if next != nil {
			return next(ctx, own, conn)
		}
		return conn, nil
	}
}

// passwordWord finds a password in a connection string of keywords and values.
var passwordWord = regexp.MustCompile(`(?:^|\s)password\s*=`)

// hasPassword reports whether a connection string has a password.
func hasPassword(text string) bool {
	if strings.HasPrefix(text, "postgres://") || strings.HasPrefix(text, "postgresql://") {
		u, err := url.Parse(text)
		if err != nil {
			return false
		}
		_, is := u.User.Password()
		return is || u.Query().Has("password")
	}

	return passwordWord.MatchString(text)
}
