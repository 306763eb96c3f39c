package privateserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// PgBouncer describes a PgBouncer in front of the PostgreSQL at host and port. mode is its pool_mode. It accepts every
// client, as the given user of PostgreSQL.
func PgBouncer(host, port, user, mode string) Program {
	return Program{
		Name: "PgBouncer",
		Command: command("pgbouncer", "on Debian, apt-get install pgbouncer; on macOS, brew install pgbouncer", func(s *Server) ([]string, error) {
			// One entry of the section of databases identifies this server.
			conf := fmt.Sprintf("[databases]\n%s = host=127.0.0.1 port=1\n* = host=%s port=%s user=%s\n"+
				"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = %d\nunix_socket_dir =\nauth_type = any\npool_mode = %s\n",
				s.nickname(), host, port, user, s.Port(), mode)

			if os.Geteuid() == 0 {
				conf += "user = nobody\n" // PgBouncer refuses to run as root
			}

			path, err := s.WriteFile("pgbouncer.ini", []byte(conf))
			return []string{path}, err
		}),
		Ask: askPgBouncer,
	}
}

// askPgBouncer asks the console, which is open to every user here.
func askPgBouncer(ctx context.Context, s *Server) error {
	conn, err := pgconn.Connect(ctx, "postgres://postgres@"+s.Addr()+"/pgbouncer?sslmode=disable")
	if err != nil {
		return err
	}
	defer conn.Close(ctx) //nolint:errcheck // the answer is complete

	results, err := conn.Exec(ctx, "SHOW DATABASES").ReadAll()
	if err != nil {
		return err
	}

	for _, result := range results {
		for _, row := range result.Rows {
			if len(row) > 0 && strings.EqualFold(string(row[0]), s.nickname()) {
				return nil
			}
		}
	}
	return errors.New("another server has the port")
}
