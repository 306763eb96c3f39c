//go:build unix

// Command with runs a command with a private PostgreSQL, and installs PostgreSQL where it
// is missing:
//
//	with [-also VARIABLE=DATABASE] COMMAND [ARGUMENT]...
//
// The command finds the URL of its database in DATABASE_URL, and the URL of another, empty
// database in VARIABLE. The server and its data are gone when the command has ended.
//
// with becomes the command, so that signals and the exit code are the command's own. A
// second process starts the server, reads from a pipe that the command inherits, and stops
// the server when the pipe has no writer left, however the command has ended.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"github.com/notifyd/notifyd/internal/lab/privateserver/pginstall"
	"github.com/notifyd/notifyd/internal/lab/privateserver/pgserver"
)

func main() {
	flags := flag.NewFlagSet("with", flag.ExitOnError)
	also := flags.String("also", "", "create another database as well, and export its URL: `VARIABLE=DATABASE`")
	serves := flags.Bool("serve", false, "be the process of the server; for internal use")
	_ = flags.Parse(os.Args[1:]) // which exits

	var err error
	switch {
	case *serves:
		err = serve(context.Background(), *also, os.Stdin, os.Stdout, os.Stderr)
	case flags.NArg() == 0:
		err = errors.New("a command to run is missing")
	default:
		err = become(*also, flags.Args())
	}

	if err != nil {
		fmt.Fprintln(os.Stderr, "with:", err)
		os.Exit(1)
	}
}

// become starts the process of the server, and replaces this process by the command. It
// returns only after a failure.
func become(also string, command []string) error {
	path, err := exec.LookPath(command[0])
	if err != nil {
		return err
	}

	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}

	reads, writes, err := os.Pipe()
	if err != nil {
		return err
	}

	server := exec.Command(self, "-serve", "-also", also) //nolint:noctx // the pipe ends it
	server.Stdin = reads
	server.Stderr = os.Stderr
	// Ctrl-C is for the command, which needs the server until it has ended.
	server.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}

	out, err := server.StdoutPipe()
	if err != nil {
		return err
	}

	if err := server.Start(); err != nil {
		return fmt.Errorf("start a process for PostgreSQL: %w", err)
	}
	if err := reads.Close(); err != nil {
		return err
	}

	exports, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return errors.Join(errors.New("the private PostgreSQL did not start"), server.Wait())
	}

	if _, err := unix.FcntlInt(writes.Fd(), unix.F_SETFD, 0); err != nil { // the command inherits it
		return fmt.Errorf("hand on the pipe: %w", err)
	}

	for export := range strings.FieldsSeq(exports) {
		name, url, _ := strings.Cut(export, "=")
		if err := os.Setenv(name, url); err != nil {
			return err
		}
	}

	return fmt.Errorf("run %s: %w", path, syscall.Exec(path, command, os.Environ()))
}

// serve starts a server, prints the variables to export on one line, and stops the server
// when in ends.
func serve(ctx context.Context, also string, in io.Reader, out, log io.Writer) (err error) {
	ctx, cancel := context.WithCancel(ctx) // the end of in also ends an installation
	defer cancel()

	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer cancel()
		_, _ = io.Copy(io.Discard, in) // no data comes, only the end
	}()

	server, err := pginstall.Start(ctx, pgserver.Config{Durable: true, Log: log})
	if err != nil {
		return fmt.Errorf("start a private PostgreSQL: %w", err)
	}
	defer func() { err = errors.Join(err, server.Stop(context.WithoutCancel(ctx))) }()

	exports := "DATABASE_URL=" + server.URL("")
	variable, database, isGiven := strings.Cut(also, "=")
	if isGiven {
		if err := create(ctx, server.URL(""), database); err != nil {
			return fmt.Errorf("create the database %s: %w", database, err)
		}
		exports += " " + variable + "=" + server.URL(database)
	}

	if _, err := fmt.Fprintf(log, "PostgreSQL %s, private, on port %d\n", server.Version(), server.Port()); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out, exports); err != nil {
		return err
	}

	<-ended
	return nil
}

func create(ctx context.Context, url, database string) (err error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()

	_, err = conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{database}.Sanitize())
	return err
}
