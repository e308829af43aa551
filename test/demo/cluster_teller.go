package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/docker"
	"github.com/pannier/pannier/test/lib/testnet"
)

// clusterTeller is a teller with a shell on each host.
type clusterTeller struct {
	*teller
	// names are those of the hosts, the servers first.
	names   []string
	servers int
	joins   bool                      // the cluster is formed by init and join; else each configuration has it
	token   string                    // of all commands; empty: none
	config  string                    // added to each node's
	daemons map[string]*docker.Daemon // of hosts that have a dockerd; the agent runs in its mount namespace

	net    *testnet.Net
	hosts  map[string]*testnet.Host
	agents map[string]*exec.Cmd
	at     time.Time // the time from which since counts

	pagesOf    string // the host that shows pages; empty: none does
	closePages func() // nil: they cannot be reached
}

// prepare opens the network, writes the files, and shows the directory.
func (s *clusterTeller) prepare() {
	s.do(func() (err error) {
		s.hosts, s.agents = map[string]*testnet.Host{}, map[string]*exec.Cmd{}
		if s.net, err = testnet.Open(1); err != nil {
			return err
		}
		fmt.Printf("$ cd %s\n$ export PATH=%s:$PATH\n", s.h.dir, s.h.bin)
		return s.h.writeClusterFiles()
	})
}

// addHosts creates the networks and the configurations.
func (s *clusterTeller) addHosts() {
	for n, name := range s.names {
		role := "node"
		if n < s.servers {
			role = "server"
		}
		s.do(func() error {
			on, err := s.net.Add(name)
			if err != nil {
				return err
			}
			s.hosts[name] = on
			return s.configure(on, role)
		})
	}
}

func (s *clusterTeller) startAll() {
	for _, name := range s.names {
		s.startAgentOf(name)
	}
	s.awaitAll()
}

func (s *clusterTeller) awaitAll() {
	for _, name := range s.names {
		s.awaitReady(name)
	}
}

func (s *clusterTeller) startHost(name string) {
	s.startAgentOf(name)
	s.awaitReady(name)
}

// startAgentOf starts the agent of a host in the host's network, with its log in a file.
func (s *clusterTeller) startAgentOf(name string) {
	s.do(func() error {
		config := name + ".hcl"
		if s.joins {
			config = configOf(name)
		}
		fmt.Printf("%s$ pannier agent -config %s &\n", name, config)
		log, err := os.OpenFile(s.h.path(name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		defer log.Close()
		cmd := exec.Command(filepath.Join(s.h.bin, "pannier"), "agent", "-config", s.h.path(config))
		if d := s.daemons[name]; d != nil {
			cmd = exec.Command("nsenter", append([]string{"--target", strconv.Itoa(d.PID()), "--mount", "--"}, cmd.Args...)...)
		}
		cmd.Stdout, cmd.Stderr = log, log
		if err := s.hosts[name].Do(cmd.Start); err != nil {
			return err
		}
		s.agents[name] = cmd
		return nil
	})
}

// awaitReady waits until an agent is ready and its driver healthy.
func (s *clusterTeller) awaitReady(name string) {
	s.do(func() error {
		return s.h.wait(s.ctx, name+" is ready", func() error {
			out, err := s.try(name, "pannier status -o json")
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			var now status
			if err := json.Unmarshal([]byte(out), &now); err != nil {
				return err
			}
			if !now.Ready || len(now.Drivers) != 1 || !now.Drivers[0].Healthy {
				return fmt.Errorf("not yet: %+v", now)
			}
			return nil
		})
	})
}

// shell prepares a line for a shell on a host, in the demo's directory.
func (s *clusterTeller) shell(on, line string) *exec.Cmd {
	cmd := exec.CommandContext(s.ctx, "sh", "-c", line)
	cmd.Dir = s.h.dir
	cmd.Env = append(os.Environ(), "NO_COLOR=1", "PATH="+s.h.bin+":"+os.Getenv("PATH"),
		"PANNIER_ADDR=unix://"+s.h.path(on+".sock"))
	if s.token != "" {
		cmd.Env = append(cmd.Env, "PANNIER_TOKEN="+s.token)
	}
	if d := s.daemons[on]; d != nil {
		cmd.Env = append(cmd.Env, d.Env()...)
	}
	return cmd
}

// configOf is the folder of a host's configuration, where the cluster is formed by init and join.
func configOf(name string) string { return name + ".etc" }

// becomes has a host form the cluster or join it, and starts its agent when the command says so. Commands have masked
// in place of a token.
func (s *clusterTeller) becomes(name, line string) (out string) {
	s.do(func() error {
		line = fmt.Sprintf("pannier cluster %s -config %s", line, configOf(name))
		fmt.Printf("%s$ %s &\n", name, maskedTokens.ReplaceAllString(line, "$1.….…"))
		cmd := s.shell(name, "exec "+line+" -o json -own-address "+s.hosts[name].Addr.String())
		var answer bytes.Buffer
		cmd.Stdout = &answer
		said, err := cmd.StderrPipe()
		if err == nil {
			err = s.hosts[name].Do(cmd.Start)
		}
		if err != nil {
			return err
		}
		s.h.background = append(s.h.background, cmd)
		for lines := bufio.NewScanner(said); lines.Scan(); {
			fmt.Print(indent(lines.Text() + "\n"))
			if strings.HasPrefix(lines.Text(), "start the agent") {
				s.startAgentOf(name)
			}
		}
		err, out = cmd.Wait(), answer.String()
		return err
	})
	return out
}

var maskedTokens = regexp.MustCompile(`(join-\w+)\.\w+\.\w+`)

// forms forms the cluster by one command a host.
func (s *clusterTeller) forms() {
	var made struct {
		Secret string `json:"management_token"`
		Server string `json:"server_token"`
		Node   string `json:"node_token"`
		Own    string `json:"address"`
	}
	out := s.becomes(s.names[0], "init")
	s.do(func() error { return json.Unmarshal([]byte(out), &made) })
	s.token = made.Secret
	fmt.Printf("$ export PANNIER_TOKEN=$(cat %s/management.token)\n", configOf(s.names[0]))
	s.sh(s.names[0], "pannier operator autopilot set -server-stabilization-time=1s")
	s.sh(s.names[0], "pannier acl policy apply web web.policy.hcl")
	s.sh(s.names[0], "(umask 077 && pannier acl token create -policy web | sed -n 's/^Secret *//p' >"+pagesToken+")")
	for n, name := range s.names[1:] {
		if n+1 < s.servers {
			s.becomes(name, "join "+made.Server+" "+made.Own)
		} else {
			s.becomes(name, "join -node "+made.Node+" "+made.Own)
		}
	}
}

func (s *clusterTeller) try(on, line string) (string, error) {
	out, err := s.shell(on, line).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w", line, err)
	}
	return string(out), err
}

// shows runs a line on a host and shows its output, which must pass check.
func (s *clusterTeller) shows(on, line string, check func(out string) error) {
	s.do(func() error {
		fmt.Println(on + "$ " + line)
		out, err := s.try(on, line)
		fmt.Print(indent(out))
		if err == nil {
			err = check(out)
		}
		return err
	})
}

// sh runs a line that must succeed.
func (s *clusterTeller) sh(on, line string) { s.shows(on, line, has("")) }

// refused runs a line that must fail with a certain reason.
func (s *clusterTeller) refused(on, line, why string) {
	s.do(func() error {
		fmt.Println(on + "$ " + line)
		out, err := s.try(on, line)
		fmt.Print(indent(out))
		return isRefusal(line, why, out, err)
	})
}

// until repeats a line until it succeeds and its output passes check, and shows that output.
func (s *clusterTeller) until(on, line string, check func(out string) error) {
	s.do(func() error {
		fmt.Println(on + "$ " + line)
		var out string
		err := s.h.wait(s.ctx, line+" shows what it has to", func() (err error) {
			if out, err = s.try(on, line); err != nil {
				return err
			}
			return check(out)
		})
		fmt.Print(indent(out))
		return err
	})
}

// has returns a check that looks for a text.
func has(text string) func(out string) error {
	return func(out string) error {
		if !strings.Contains(out, text) {
			return fmt.Errorf("%q is not in its output: %s", text, out)
		}
		return nil
	}
}

// allReady checks that a list has all nodes and all of them are ready.
func (s *clusterTeller) allReady(out string) error {
	if n := strings.Count(out, " ready "); n != len(s.names) {
		return fmt.Errorf("%d nodes are ready: %s", n, out)
	}
	return nil
}

// writer runs a workload that writes its name and the time into its volume.
func (s *clusterTeller) writer(on, workload string) *exec.Cmd {
	var cmd *exec.Cmd
	s.do(func() error {
		line := fmt.Sprintf("pannier workload run %s.hcl -- sh %s %s", workload, s.h.path("write"), on)
		fmt.Println(on + "$ " + line + " &")
		cmd = s.shell(on, "exec "+line)
		cmd.Stdout, cmd.Stderr = &bytes.Buffer{}, &bytes.Buffer{}
		if err := cmd.Start(); err != nil {
			return err
		}
		s.h.background = append(s.h.background, cmd)
		return nil
	})
	return cmd
}

// written returns the uptimes at which a host wrote into the volume.
func (s *clusterTeller) written(by string) (at []float64, err error) {
	logs, err := filepath.Glob(s.h.path("volumes/*data*/data/log"))
	if err != nil || len(logs) != 1 {
		return nil, errors.Join(fmt.Errorf("the volume has %d logs", len(logs)), err)
	}
	raw, err := os.ReadFile(logs[0])
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(raw)) {
		who, when, _ := strings.Cut(strings.TrimSpace(line), " ")
		if who != by {
			continue
		}
		t, err := strconv.ParseFloat(when, 64)
		if err != nil {
			return nil, err
		}
		at = append(at, t)
	}
	return at, nil
}

// writes waits until a host has written into the volume after the call.
func (s *clusterTeller) writes(by string) {
	s.do(func() error {
		begun := -1
		return s.h.wait(s.ctx, by+" writes", func() error {
			at, err := s.written(by)
			if begun < 0 {
				begun = len(at)
			}
			if err == nil && len(at) <= begun+1 {
				err = fmt.Errorf("%d lines", len(at))
			}
			if err == nil {
				fmt.Printf("  ok: %s writes into the volume\n", by)
			}
			return err
		})
	})
}

// handedOver shows when one host wrote last and the other one first, which must be later.
func (s *clusterTeller) handedOver(from, to string) {
	s.do(func() error {
		a, err := s.written(from)
		if err != nil {
			return err
		}
		b, err := s.written(to)
		if err != nil {
			return err
		}
		last, first := a[len(a)-1], b[0]
		if first <= last {
			return fmt.Errorf("%s wrote at %.2f s, and %s at %.2f s already: two had the volume", from, last, to, first)
		}
		fmt.Printf("  ok: the last write of %s was %.2f s before the first one of %s\n", from, first-last, to)
		return nil
	})
}

// killLeader kills the agent of the leader, and returns its name.
func (s *clusterTeller) killLeader() (name string) {
	s.do(func() error {
		err := s.h.wait(s.ctx, "a server leads", func() error {
			out, err := s.try("node-1", "pannier operator raft list-peers")
			for line := range strings.Lines(out) {
				if strings.Contains(line, " leader ") {
					name, _, _ = strings.Cut(line, " ")
				}
			}
			if err == nil && s.agents[name] == nil {
				err = fmt.Errorf("nobody leads: %s", out)
			}
			return err
		})
		if err != nil {
			return err
		}
		cmd := s.agents[name]
		fmt.Printf("%s$ kill -9 %d\n", name, cmd.Process.Pid)
		delete(s.agents, name)
		s.at = time.Now()
		return errors.Join(cmd.Process.Kill(), ended(cmd.Wait()))
	})
	return name
}

func (s *clusterTeller) since(what string) {
	s.do(func() error {
		fmt.Printf("  ok: %.1f s after %s\n", time.Since(s.at).Seconds(), what)
		return nil
	})
}

// ended returns nil if a process has ended in any way.
func ended(err error) error {
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return nil
	}
	return err
}

func (s *clusterTeller) cut(name string) {
	s.do(func() error {
		fmt.Printf("  (nothing passes between %s and the others any more)\n", name)
		s.net.Part(s.hosts[name])
		return nil
	})
}

func (s *clusterTeller) heal() {
	s.do(func() error {
		fmt.Println("  (everything passes again)")
		s.net.Heal()
		return nil
	})
}

// writerEnds waits until the program of a host's workload has ended by itself.
func (s *clusterTeller) writerEnds(on string) {
	s.do(func() error {
		command := "sh\x00" + s.h.path("write") + "\x00" + on
		err := s.h.wait(s.ctx, "the writer on "+on+" has ended", func() error {
			for _, pid := range s.processes() {
				if raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); strings.HasPrefix(string(raw), command) {
					return fmt.Errorf("process %d writes", pid)
				}
			}
			return nil
		})
		if err == nil {
			fmt.Printf("  ok: nobody writes on %s\n", on)
		}
		return err
	})
}

// ends waits until a workload's command has ended by itself, and shows the end of its output.
func (s *clusterTeller) ends(cmd *exec.Cmd) {
	s.do(func() error {
		done := make(chan error, 1)
		go func() { done <- cmd.Wait() }()
		select {
		case err := <-done:
			fmt.Print(indent(fmt.Sprint(cmd.Stderr)))
			return ended(err)
		case <-time.After(30 * time.Second):
			return fmt.Errorf("%s has not ended", cmd)
		}
	})
}

// notMounted checks that no volume is mounted on a host.
func (s *clusterTeller) notMounted(name string) error {
	found, err := mountinfo.GetMounts(mountinfo.PrefixFilter(s.h.path(name + "/csi")))
	if err == nil && len(found) > 0 {
		err = fmt.Errorf("%s is mounted", found[0].Mountpoint)
	}
	return err
}

// stopAll stops the agents, the nodes first.
func (s *clusterTeller) stopAll() {
	for _, name := range slices.Backward(s.names) {
		s.do(func() error {
			cmd := s.agents[name]
			fmt.Printf("%s$ kill -TERM %d\n", name, cmd.Process.Pid)
			delete(s.agents, name)
			return errors.Join(cmd.Process.Signal(unix.SIGTERM), cmd.Wait())
		})
	}
}

// processes returns the processes that were started from or for the demo's directory.
func (s *clusterTeller) processes() (pids []int) {
	found, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range found {
		pid, err := strconv.Atoi(strings.Split(path, "/")[2])
		if raw, _ := os.ReadFile(path); err == nil && pid != os.Getpid() && bytes.Contains(raw, []byte(s.h.dir)) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func (s *clusterTeller) nothingRuns() error {
	return s.h.wait(s.ctx, "nothing runs", func() error {
		if pids := s.processes(); len(pids) > 0 {
			return fmt.Errorf("processes %v run", pids)
		}
		return nil
	})
}

// cleanUp ends everything that still runs. After a failure it shows the end of the agents' logs.
func (s *clusterTeller) cleanUp() error {
	var tails []error
	if s.err != nil {
		for _, name := range s.names {
			if raw, err := os.ReadFile(s.h.path(name + ".log")); err == nil {
				lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
				tails = append(tails, fmt.Errorf("%s.log ends with:\n%s", name, strings.Join(lines[max(0, len(lines)-15):], "\n")))
			}
		}
	}
	if s.closePages != nil {
		s.closePages()
	}
	for _, cmd := range s.agents {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(pollEvery) {
		pids := s.processes()
		if len(pids) == 0 {
			break
		}
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
	for _, d := range s.daemons {
		tails = append(tails, d.Close(), os.RemoveAll(d.Dir()))
	}
	if s.net != nil {
		tails = append(tails, s.net.Close())
	}
	return errors.Join(tails...)
}
