package agentcli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pannier/pannier/host/cmd/pannier-agent/agentcli/newplugin"
	"github.com/pannier/pannier/host/internal/cli"
)

func newPlugin(a *cli.App) *cobra.Command {
	p := newplugin.Plugin{}
	kinds := newplugin.Kinds()
	cmd := &cobra.Command{
		Use: "new KIND DIR", Short: "Write the module of a new plugin: it builds, tests and runs at once",
		Long: `Write the Go module of a new plugin into a folder, which gives the plugin its name. It
builds, passes its tests and runs under an agent unchanged; plugin.go is for the author to
fill in. The kind is one of ` + strings.Join(kinds, ", ") + `.

It needs the go command, to find the versions of the dependencies. With -lang node it is
a storage plugin in JavaScript instead, which npm builds, and with -lang python one in
Python. docs/plugins.md is the guide for authors.`,
		Example: "pannier agent plugin new storage my-storage",
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			switch len(args) {
			case 0:
				return kinds, cobra.ShellCompDirectiveNoFileComp
			case 1:
				return nil, cobra.ShellCompDirectiveFilterDirs
			default:
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
		},
	}
	cmd.Flags().StringVar(&p.Lang, "lang", "go", "the `LANGUAGE`: "+strings.Join(newplugin.Langs, ", "))
	cmd.Flags().StringVar(&p.SDKDir, "sdk", "", "build with the SDK in `DIR`, a checkout of pannier (default: a release)")
	cmd.Flags().StringVar(&p.Module, "module", "",
		"the `NAME` of the module (default: example.com/ and the folder's name)")
	cmd.RunE = a.Do(func(ctx context.Context, args []string) error {
		p.Kind, p.Dir = args[0], args[1]
		if p.SDKDir == "" && p.Lang == "go" {
			p.SDKVersion = ownSDK()
		}
		return writePlugin(ctx, a, p)
	})
	return cmd
}

// ownSDK returns the release of the SDK that this program was built with; empty: it was the SDK of a checkout.
func ownSDK() string {
	info, _ := debug.ReadBuildInfo() // a program that was built with modules has one
	for _, dep := range info.Deps {
		if dep.Path == newplugin.SDK && dep.Replace == nil && dep.Version != "(devel)" {
			return dep.Version
		}
	}
	return ""
}

func writePlugin(ctx context.Context, a *cli.App, p newplugin.Plugin) error {
	_, missing := os.Stat(p.Dir)
	files, err := newplugin.Write(p)
	if err != nil {
		return cli.Usage("%w", err)
	}
	next := "make conformance"
	if p.Lang == "go" {
		if err := tidied(ctx, p, files, missing != nil); err != nil {
			return err
		}
		files = append(files, "go.sum")
		next = "go test ./... && go build . && pannier agent plugin test ./" + filepath.Base(p.Dir)
	}
	a.Note("next: cd %s && %s", p.Dir, next)
	return a.Done(map[string]any{"dir": p.Dir, "files": files}, nil, "%s: %s", p.Dir, strings.Join(files, ", "))
}

// tidied completes a Go module, or removes what was written, with the folder if it was missing before.
func tidied(ctx context.Context, p newplugin.Plugin, files []string, missing bool) error {
	err := tidy(ctx, p.Dir)
	if err == nil {
		return nil
	}
	for _, file := range append(files, "go.sum") {
		_ = os.Remove(filepath.Join(p.Dir, file)) // go.sum may not be there
	}
	if missing {
		_ = os.Remove(p.Dir)
	}
	hint := "nothing was written: put that right, and run it again"
	if p.SDKDir == "" {
		hint = "without a release of " + newplugin.SDK + ", build with a checkout of pannier: -sdk DIR"
	}
	return cli.Hinted(fmt.Errorf("what the module needs could not be looked up: %w", err), "%s", hint)
}

// tidy lets the go command write what the module needs into go.mod and go.sum.
func tidy(ctx context.Context, dir string) error {
	cmd := exec.CommandContext(ctx, "go", "mod", "tidy")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off")
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return fmt.Errorf("go mod tidy: %w\n%s", err, strings.TrimSpace(string(out)))
	}
	if err != nil {
		return fmt.Errorf("go mod tidy: %w", err)
	}
	return nil
}
