package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// agentProgram is the other program: the agent, and the commands that need what the agent consists of. It is beside
// this one, or in lib/pannier beside this one's folder, where packages install it. People type pannier agent for it.
const agentProgram = "pannier-agent"

// agentCommand stands for the other program, which becomeAgent executes.
func agentCommand() *cobra.Command {
	return &cobra.Command{
		Use: "agent", Short: "Run the agent of this host, reload, upgrade or stop it, and handle files of plugins",
		DisableFlagParsing: true,
		Run:                func(*cobra.Command, []string) {},
	}
}

// becomeAgent executes the other program for pannier agent, and its completion. It returns nil for all other commands.
// To be called before signals are caught: one that is caught here does not reach the other program.
func (a *App) becomeAgent(root *cobra.Command) error {
	args := a.Options.Args
	program := []string{agentProgram}
	if len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd) {
		program, args = append(program, args[0]), args[1:]
	}
	cmd, args, err := root.Find(longFlags(root, args))
	if err != nil || cmd.CommandPath() != "pannier agent" {
		return nil //nolint:nilerr // the command line is looked at once more
	}
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program's folder: %w", err)
	}
	dir := filepath.Dir(exe)
	beside, packaged := filepath.Join(dir, agentProgram), filepath.Join(filepath.Dir(dir), "lib/pannier", agentProgram)
	for _, path := range []string{beside, packaged} {
		err := syscall.Exec(path, append(program, args...), os.Environ())
		if !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("execute %s: %w", path, err)
		}
	}
	return Hinted(fmt.Errorf("this needs the program %s, which is neither %s nor %s", agentProgram, beside, packaged),
		"install it in one of these places")
}

// agentsOwn are stand-ins for commands that only the other program has, with its name for them.
func agentsOwn(noun string, names ...string) (all []*cobra.Command) {
	for _, name := range names {
		all = append(all, &cobra.Command{
			Use: name, Hidden: true, DisableFlagParsing: true,
			RunE: func(cmd *cobra.Command, _ []string) error {
				return Hinted(Usage("%s is a command of %s", cmd.CommandPath(), agentProgram), "run: pannier agent %s %s", noun,
					name)
			},
		})
	}
	return all
}
