// A plugin for tests. Its first argument, or a line "#fixture MODE VERSION" at the end of its executable, says how
// it misbehaves; without either it is a good plugin. It is a storage plugin, whose calls do what the volume's name
// says, unless the line names another kind after the version. It says that its name is "fixture", or what a line
// "#named NAME" at the end says.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/storage"
	"github.com/pannier/pannier/sdk/wire"
)

func main() {
	mode := "good"
	if len(os.Args) > 1 {
		mode = os.Args[1]
	}
	version, of := "1.2.3", "storage"
	switch line := trailer("#fixture "); len(line) {
	case 2:
		mode, version = line[0], line[1]
	case 3:
		mode, version, of = line[0], line[1], line[2]
	}
	kind := kinds[of](&impl{mode: mode})
	switch mode {
	case "exit":
		fmt.Fprintln(os.Stderr, "the disk is on fire")
		os.Exit(7)
	case "hang":
		time.Sleep(time.Hour) // Go ends a process in which nothing can happen any more
	case "garbage":
		fmt.Println("hello, I am not a plugin")
		time.Sleep(time.Hour)
	case "endless-line":
		for {
			fmt.Print(strings.Repeat("x", 1<<20))
		}
	case "wrong-cookie":
		goplugin.Serve(&goplugin.ServeConfig{HandshakeConfig: goplugin.HandshakeConfig{
			MagicCookieKey:   "OTHER",
			MagicCookieValue: "x",
		}})
		os.Exit(1)
	case "wrong-wire":
		goplugin.Serve(&goplugin.ServeConfig{
			HandshakeConfig:  wire.Handshake,
			VersionedPlugins: map[int]goplugin.PluginSet{99: wire.Plugins(func(*grpc.Server) {})[wire.Version]},
			GRPCServer:       goplugin.DefaultGRPCServer,
		})
	case "wrong-socket":
		fmt.Println("1|1|unix|/run/somebody-elses.sock|grpc|")
		time.Sleep(time.Hour)
	case "plain":
		// No TLS: a server listens, but does not prove its identity.
		l := os.Getenv("PLUGIN_UNIX_SOCKET_DIR") + "/plugin1"
		go serveHTTP(l)
		fmt.Println("1|1|unix|" + l + "|grpc|")
		time.Sleep(time.Hour)
	case "other-certificate":
		forge()
	case "next-wire":
		versions := wire.Plugins(register(&hanging{}))
		versions[wire.Version+1] = versions[wire.Version]
		serve(versions)
		os.Exit(0)
	case "wrong-kind":
		kind.Kind = "device.v1"
	case "hang-in-info", "hang-in-attend", "hang-in-stop":
		hangs(strings.TrimPrefix(mode, "hang-in-"))
		os.Exit(0)
	case "exit-after-handshake":
		// The process prints where it would have listened, and dies.
		fmt.Println("1|1|unix|" + os.Getenv("PLUGIN_UNIX_SOCKET_DIR") + "/plugin1|grpc|")
		os.Exit(4)
	case "panic":
		panic("boom")
	case "bad-version":
		version = "one"
	case "eat":
		eat(mib())
	case "bomb":
		fmt.Fprintln(os.Stderr, "children:", bomb(100))
		time.Sleep(time.Hour) // Go ends a process in which nothing can happen any more
	case "spill":
		go spill(mib())
	case "crash-soon":
		go func() {
			time.Sleep(20 * time.Millisecond)
			os.Exit(9)
		}()
	case "flood":
		go func() {
			for line := strings.Repeat("flood ", 100); ; {
				fmt.Fprintln(os.Stderr, line)
			}
		}()
	}
	sdk.Main(sdk.Info{Name: pluginName(), Version: version}, kind)
}

func pluginName() string {
	if line := trailer("#named "); len(line) > 0 {
		return line[0]
	}
	return "fixture"
}

// trailer returns the words after a mark at the end of this executable.
func trailer(mark string) []string {
	f, err := os.Open("/proc/self/exe")
	if err != nil {
		panic(err)
	}
	defer f.Close()
	end := make([]byte, 128)
	info, err := f.Stat()
	if err != nil {
		panic(err)
	}
	if _, err := f.ReadAt(end, info.Size()-int64(len(end))); err != nil {
		panic(err)
	}
	_, rest, _ := strings.Cut(string(end), mark)
	line, _, _ := strings.Cut(rest, "\n")
	return strings.Fields(line)
}

func serveHTTP(path string) {
	l, err := net.Listen("unix", path)
	if err != nil {
		panic(err)
	}
	http.Serve(l, nil)
}

type impl struct {
	storage.Storage
	storage.Attacher
	mode   string
	config string
	unwell atomic.Bool // from a call on
}

func (i *impl) Validate(ctx context.Context, config []byte) error {
	if i.mode == "hang-in-validate" {
		<-ctx.Done()
		return ctx.Err()
	}
	if strings.Contains(string(config), "wrong") {
		return errors.New(`key "wrong" is not known`)
	}
	return nil
}

func (i *impl) Configure(ctx context.Context, config []byte) error {
	switch i.mode {
	case "hang-in-configure":
		<-ctx.Done()
		return ctx.Err()
	case "refuses":
		return errors.New("the configuration is not to its taste")
	case "exit-in-configure":
		os.Exit(5)
	case "print": // now: what comes before the handshake is taken for it
		go func() {
			for line := strings.Repeat("print ", 100); ; time.Sleep(time.Millisecond) {
				fmt.Println(line)
			}
		}()
	}
	i.config = string(config)
	return nil
}

func (i *impl) Health(context.Context) error {
	if i.mode == "unwell" || i.unwell.Load() {
		return errors.New("no driver answers")
	}
	return nil
}

// answer fails as the mode says.
func (i *impl) answer(ctx context.Context) error {
	switch i.mode {
	case "fails":
		return status.Error(codes.Internal, "nothing works")
	case "panics":
		panic("in each call")
	case "has-no-calls":
		return status.Error(codes.Unimplemented, "not in this version")
	case "unwell-in-calls":
		i.unwell.Store(true)
	case "hangs-in-calls":
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

func (i *impl) Attach(ctx context.Context, d storage.Driver, req storage.AttachRequest) (map[string]string, error) {
	if err := i.answer(ctx); err != nil {
		return nil, err
	}
	switch what, arg, _ := strings.Cut(req.Volume.Name, " "); what {
	case "fail":
		return nil, status.Error(codes.Internal, "as it was told")
	case "relay":
		return nil, sdk.Relayed(status.Error(codes.Internal, "the driver's"))
	case "unwell":
		i.unwell.Store(true)
	case "panic":
		var m map[string]int
		m["boom"]++
	case "exit":
		os.Exit(3)
	case "sleep":
		d, err := time.ParseDuration(arg)
		if err != nil {
			return nil, err
		}
		if d >= time.Second {
			sdk.Logger().Info("asleep")
		}
		select {
		case <-time.After(d):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	case "wait": // for a file
		sdk.Logger().Info("asleep")
		for {
			if _, err := os.Stat(arg); err == nil {
				break
			}
			select {
			case <-time.After(5 * time.Millisecond):
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	case "child":
		cmd := exec.Command("sleep", "1000")
		if err := cmd.Start(); err != nil {
			return nil, err
		}
		return map[string]string{"child": strconv.Itoa(cmd.Process.Pid)}, nil
	case "eat", "bomb":
		n, err := strconv.Atoi(arg)
		if err != nil {
			return nil, err
		}
		if what == "bomb" {
			return map[string]string{"children": bomb(n)}, nil
		}
		go eat(n)
	case "spin":
		spin()
	case "log":
		sdk.Logger().Warn("said in a call", "volume", arg)
	}
	return map[string]string{
		"pid": strconv.Itoa(os.Getpid()), "config": i.config, "args": strings.Join(os.Args[1:], " "),
		"env": strings.Join(os.Environ(), "\n"),
	}, nil
}
