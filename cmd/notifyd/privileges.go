package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"
)

// insufficientPrivilege is a code of PostgreSQL.
const insufficientPrivilege = "42501"

// grantCure returns the cure for a statement of the command cmd that PostgreSQL refused for lack of
// a privilege, "" if err is another error. Each command runs with the privileges of one of three
// roles: the owner of the tables, a writer, or a relay.
func (a *app) grantCure(cmd *cobra.Command, err error) string {
	refused, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || refused.Code != insufficientPrivilege || a.role == "" {
		return ""
	}
	const owner = "run the command as the owner of the tables"
	var flag string
	switch path := strings.TrimPrefix(cmd.CommandPath(), "notifyd "); {
	case strings.HasPrefix(path, "migrate"), path == "dlq edit":
		return fmt.Sprintf(": role %s is not the owner of the tables: %s", pgx.Identifier{a.role}.Sanitize(), owner)
	case path == "publish":
		flag = "--writer"
	default:
		flag = "--relay"
	}
	return fmt.Sprintf(": role %s lacks a privilege in schema %s: %s, or as its owner run the output of `notifyd migrate --print-grants --schema %s %s %s`",
		pgx.Identifier{a.role}.Sanitize(), pgx.Identifier{a.schema}.Sanitize(), owner, shellWord(a.schema), flag, shellWord(a.role))
}

// shellWord quotes a word for a shell where that is necessary.
func shellWord(word string) string {
	for _, r := range word {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' && r != '-' {
			return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
	}
	return word
}
