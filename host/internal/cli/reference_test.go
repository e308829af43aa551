package cli

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pannier/pannier/host/internal/config"
	"github.com/pannier/pannier/test/lib/check"
)

var (
	updatePage = flag.Bool("update", false, "write the commands in docs/cli.md (make docs)")
	manDir     = flag.String("man", "", "the folder to write man pages to (make man)")
)

// documented calls do for every command that is meant for users, parents first.
func documented(do func(*cobra.Command)) {
	a := &app{opts: Options{RunAgent: func(context.Context, *config.Agent, string, io.Writer) error { return nil }}}
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.Hidden {
			return
		}
		do(cmd)
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(a.rootCommand())
}

// TestCommandReference checks that the commands in docs/cli.md match the program's. `make docs` writes them.
func TestCommandReference(t *testing.T) {
	const begin, end = "<!-- commands -->\n", "<!-- end of commands -->"
	path := filepath.Join(docs, "cli.md")
	text := string(check.Must(os.ReadFile(path))(t))
	before, rest, found := strings.Cut(text, begin)
	_, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatalf("docs/cli.md has no %q … %q", begin, end)
	}
	var out strings.Builder
	documented(func(cmd *cobra.Command) { writeMarkdown(&out, cmd) })
	want := before + begin + out.String() + "\n" + end + after
	if *updatePage {
		check.NoError(t, os.WriteFile(path, []byte(want), 0o644))
		return
	}
	if text != want {
		t.Error("docs/cli.md does not show the commands as they are; run: make docs")
	}
}

// TestEveryCommandHasAnExample checks that the examples of a command show that command.
func TestEveryCommandHasAnExample(t *testing.T) {
	documented(func(cmd *cobra.Command) {
		if cmd.Short == "" || len(cmd.Short) > 80 || strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%s: %q is not a short description", cmd.CommandPath(), cmd.Short)
		}
		if runs := !cmd.HasSubCommands() || cmd.Example != ""; runs && !strings.Contains(cmd.Example, cmd.CommandPath()) {
			t.Errorf("the example of %s does not show the command: %q", cmd.CommandPath(), cmd.Example)
		}
	})
}

// TestManPages writes a page for each command.
func TestManPages(t *testing.T) {
	dir := *manDir
	if dir == "" {
		dir = t.TempDir()
	}
	check.NoError(t, os.MkdirAll(dir, 0o755))
	documented(func(cmd *cobra.Command) {
		name := strings.ReplaceAll(cmd.CommandPath(), " ", "-")
		check.NoError(t, os.WriteFile(filepath.Join(dir, name+".1"), []byte(manPage(name, cmd)), 0o644))
	})
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
		return cmd.Use
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

func writeMarkdown(out *strings.Builder, cmd *cobra.Command) {
	if !cmd.HasParent() {
		return // the page has its own section about global flags
	}
	level := "###"
	if cmd.HasSubCommands() && !cmd.Parent().HasParent() {
		level = "##"
	}
	title := cmd.CommandPath()
	if cmd.Example != "" && !cmd.HasSubCommands() {
		title = usage(cmd)
	}
	fmt.Fprintf(out, "\n%s `%s`\n\n%s\n", level, title, strings.TrimSpace(description(cmd)))
	if cmd.Example == "" {
		return
	}
	lead := "\n"
	eachFlag(cmd, func(flag, use string) {
		fmt.Fprintf(out, "%s- `%s`: %s\n", lead, flag, use)
		lead = ""
	})
	fmt.Fprintf(out, "\n```\n%s\n```\n", cmd.Example)
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
