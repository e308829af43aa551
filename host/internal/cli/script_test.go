package cli

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/clitest"
)

// TestMain also runs this binary as the pannier command, and as the child that it starts for workloads.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"pannier": func() { os.Exit(pannier()) }})
}

// pannier runs the main function of cmd/pannier.
func pannier() int {
	return Main(Options{Args: os.Args[1:], Stdout: os.Stdout, Stderr: os.Stderr, Version: "1.2.3"})
}

// TestScripts runs testdata/*.txt. These commands exist in addition to those of testscript:
//
//	code N COMMAND ARGS...   runs the command, whose exit code must be N
//	statuses N               waits until the agent was asked for its status N times
//	breaks N                 breaks off the agent's next N streams
//	consul away|back         makes Consul unavailable for revoking tokens, or available again
//	agent stop|start         stops the agent, leaving its socket, or starts it again
//	acl                      goes on with an agent that has ACLs and a ledger
//	keep NAME REGEXP         sets a variable to what the group of REGEXP matches in the last output
func TestScripts(t *testing.T) {
	type key struct{}
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(env *testscript.Env) error {
			f := newFake(env.WorkDir)
			env.Values[key{}] = f
			env.Defer(f.close)
			env.Setenv("PANNIER_ADDR", "unix://"+f.socket)
			env.Setenv("HOME", env.WorkDir)
			env.Setenv("NO_COLOR", "")
			// With -race, every command would sleep for a second before it exits.
			env.Setenv("GORACE", "atexit_sleep_ms=0")
			return f.start()
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"code": clitest.Code,
			"statuses": func(ts *testscript.TestScript, _ bool, args []string) {
				f := ts.Value(key{}).(*fake)
				n, err := strconv.ParseInt(args[0], 10, 64)
				ts.Check(err)
				check.Eventually(t, args[0]+" questions about the status", func() bool { return f.statuses.Load() >= n })
			},
			"breaks": func(ts *testscript.TestScript, _ bool, args []string) {
				f := ts.Value(key{}).(*fake)
				n, err := strconv.Atoi(args[0])
				ts.Check(err)
				f.mu.Lock()
				defer f.mu.Unlock()
				f.breaks = n
			},
			"consul": func(ts *testscript.TestScript, _ bool, args []string) {
				f := ts.Value(key{}).(*fake)
				f.mu.Lock()
				defer f.mu.Unlock()
				f.consulAway = args[0] == "away"
			},
			"agent": func(ts *testscript.TestScript, _ bool, args []string) {
				f := ts.Value(key{}).(*fake)
				if args[0] == "stop" {
					f.close()
					return
				}
				ts.Check(os.Remove(f.socket))
				ts.Check(f.start())
			},
			"acl": func(ts *testscript.TestScript, _ bool, _ []string) {
				socket, stop, err := serveACL(ts.MkAbs("."))
				ts.Check(err)
				ts.Defer(func() { ts.Check(stop()) })
				ts.Setenv("PANNIER_ADDR", "unix://"+socket)
			},
			"keep": func(ts *testscript.TestScript, _ bool, args []string) {
				found := regexp.MustCompile("(?m)" + args[1]).FindStringSubmatch(ts.ReadFile("stdout"))
				if len(found) != 2 {
					ts.Fatalf("%s is not in the output", args[1])
				}
				ts.Setenv(args[0], found[1])
			},
		},
		Condition: func(cond string) (bool, error) {
			if cond == "root" {
				return os.Geteuid() == 0, nil
			}
			return false, fmt.Errorf("unknown condition %q", cond)
		},
	})
}
