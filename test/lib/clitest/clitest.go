// Package clitest has what the tests of both command lines share.
package clitest

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
)

// Code is a command of scripts: code N COMMAND ARGS... runs the command, whose exit code must be N.
func Code(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: code N COMMAND ARGS...")
	}
	got := 0
	err := ts.Exec(args[1], args[2:]...)
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		got = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if want, err := strconv.Atoi(args[0]); err != nil || got != want {
		ts.Fatalf("exit code %d, want %s", got, args[0])
	}
}

var manDir = flag.String("man", "", "the folder to write man pages to (make man)")

// Reference checks that each command for users has a short description and an example, and writes its man page.
func Reference(t *testing.T, root *cobra.Command) {
	t.Helper()
	dir := *manDir
	if dir == "" {
		dir = t.TempDir()
	}
	check.NoError(t, os.MkdirAll(dir, 0o755))
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.Hidden || cmd.DisableFlagParsing { // the other program's
			return
		}
		if cmd.Short == "" || len(cmd.Short) > 80 || strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%s: %q is not a short description", cmd.CommandPath(), cmd.Short)
		}
		if runs := !cmd.HasSubCommands() || cmd.Example != ""; runs && !strings.Contains(cmd.Example, cmd.CommandPath()) {
			t.Errorf("the example of %s does not show the command: %q", cmd.CommandPath(), cmd.Example)
		}
		name := strings.ReplaceAll(cmd.CommandPath(), " ", "-")
		check.NoError(t, os.WriteFile(filepath.Join(dir, name+".1"), []byte(manPage(name, cmd)), 0o644))
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(root)
}

// named matches a command in a page.
var named = regexp.MustCompile("(?m)(?:`|^|[|&;(] ?)(pannier(?: [a-z][a-z-]*)+)")

// Pages checks that the commands which the documents name exist.
func Pages(t *testing.T, root *cobra.Command) {
	t.Helper()
	docs := filepath.Join(testbin.Root(), "docs")
	var pages []string
	for _, pattern := range []string{"../README.md", "*.md", "operations/*.md"} {
		pages = append(pages, check.Must(filepath.Glob(filepath.Join(docs, pattern)))(t)...)
	}
	for _, page := range pages {
		for _, m := range named.FindAllStringSubmatch(string(check.Must(os.ReadFile(page))(t)), -1) {
			words, ours := strings.CutPrefix(m[1]+" ", root.CommandPath()+" ")
			cmd := root
			for word := range strings.FieldsSeq(words) {
				if !ours || !cmd.HasSubCommands() {
					break
				}
				next, _, err := cmd.Find([]string{word})
				if err != nil || next == cmd || next.Hidden {
					t.Errorf("%s names %q: %s has no such command", page, m[1], cmd.CommandPath())
					break
				}
				cmd = next
			}
		}
	}
}

func description(cmd *cobra.Command) string {
	if cmd.Long != "" {
		return cmd.Long
	}
	return cmd.Short + "."
}

// usage returns a command's usage line without the words that cobra adds.
func usage(cmd *cobra.Command) string {
	if !cmd.HasParent() {
		return cmd.CommandPath()
	}
	return cmd.Parent().CommandPath() + " " + cmd.Use
}

// eachFlag calls do with the command's own flags: the flag's syntax in backquotes, and its description.
func eachFlag(cmd *cobra.Command, do func(flag, use string)) {
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		value, use := pflag.UnquoteUsage(f)
		name := strings.TrimSpace("-" + f.Name + " " + value)
		if f.Shorthand != "" {
			name += "`, `-" + f.Shorthand
		}
		switch f.DefValue {
		case "", "false", "0", "0s", "[]":
		default:
			if !strings.Contains(use, "default") {
				use += fmt.Sprintf(" (default %s)", f.DefValue)
			}
		}
		do(name, use)
	})
}

func manPage(name string, cmd *cobra.Command) string {
	text := func(s string) string {
		s = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s)
		lines := strings.Split(s, "\n")
		for i, line := range lines {
			if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
				lines[i] = `\&` + line
			}
		}
		return strings.Join(lines, "\n")
	}
	var out strings.Builder
	section := func(title string) { fmt.Fprintf(&out, ".SH %s\n", title) }
	fmt.Fprintf(&out, ".TH %q 1\n", strings.ToUpper(name))
	section("NAME")
	fmt.Fprintf(&out, "%s \\- %s\n", text(name), text(cmd.Short))
	section("SYNOPSIS")
	fmt.Fprintf(&out, ".B %s\n", text(usage(cmd)))
	section("DESCRIPTION")
	fmt.Fprintln(&out, strings.ReplaceAll(text(description(cmd)), "\n\n", "\n.PP\n"))
	if cmd.HasAvailableLocalFlags() {
		section("OPTIONS")
		eachFlag(cmd, func(flag, use string) {
			fmt.Fprintf(&out, ".TP\n.B %s\n%s\n", text(strings.ReplaceAll(flag, "`", "")), text(use))
		})
	}
	if cmd.Example != "" {
		section("EXAMPLES")
		fmt.Fprintf(&out, ".nf\n%s\n.fi\n", text(cmd.Example))
	}
	section("SEE ALSO")
	var also []string
	if cmd.HasParent() {
		also = append(also, strings.ReplaceAll(cmd.Parent().CommandPath(), " ", "-")+"(1)")
	}
	for _, sub := range cmd.Commands() {
		if !sub.Hidden {
			also = append(also, strings.ReplaceAll(sub.CommandPath(), " ", "-")+"(1)")
		}
	}
	fmt.Fprintln(&out, text(strings.Join(also, ", ")))
	return out.String()
}

// Terminal opens a pseudo-terminal and returns both ends.
func Terminal(t *testing.T) (keyboard, terminal *os.File) {
	t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	check.NoError(t, err)
	t.Cleanup(func() { keyboard.Close() })
	check.NoError(t, unix.IoctlSetPointerInt(int(keyboard.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(keyboard.Fd()), unix.TIOCGPTN)
	check.NoError(t, err)
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	check.NoError(t, err)
	t.Cleanup(func() { terminal.Close() })
	return keyboard, terminal
}
