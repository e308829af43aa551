package dockervolume

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pannier/pannier/test/lib/docker"
	"github.com/pannier/pannier/test/lib/docpages"
)

// try runs commands of a page on the host, in a directory of it.
func (r *rig) try(dir, lines string) (string, error) {
	cmd := r.InNamespace("timeout", "120", "sh", "-euc", "cd '"+dir+"'\n"+lines)
	cmd.Env = append(os.Environ(), r.Daemon.Env()...)
	cmd.Env = append(cmd.Env, "PATH="+filepath.Dir(r.Pannier)+":"+os.Getenv("PATH"), "PANNIER_ADDR=unix://"+r.Socket(),
		"COMPOSE_FILE=compose.yaml:network.yaml")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// follow is try for commands that must succeed.
func (r *rig) follow(t *testing.T, dir, lines string) string {
	t.Helper()
	out, err := r.try(dir, lines)
	if err != nil {
		t.Fatalf("on %s: %v\n%s%s\n%s", r.Name, err, lines, out, r.LogTail())
	}
	t.Logf("on %s:\n%s%s", r.Name, lines, out)
	return out
}

// composeRecipe follows docs/recipes/compose.md. The engine has no network.
func composeRecipe(t *testing.T, r *rig) {
	if _, err := exec.LookPath("docker-compose"); err != nil {
		t.Skip("needs docker-compose (Debian: docker-compose); not covered: docs/recipes/compose.md")
	}
	const page = "compose.md"
	p := docpages.Read(t, "recipes/"+page)
	r.Image(t, "busybox", `CMD ["sh"]`)
	dir := r.Path("shop")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	r.Write("shop/compose.yaml", strings.Replace(p.Block(page, "file", "compose.yaml"), "1GiB", "16MiB", 1))
	r.Write("shop/network.yaml", "services: {app: {network_mode: none}, web: {network_mode: 'service:app'}}\n")
	run := func(name string) string {
		t.Helper()
		return r.follow(t, dir, p.Block(page, "run", name))
	}
	r.rm(t, "shop_app_1")
	r.rm(t, "shop_web_1")
	run("up")
	r.held(t, "shop_uploads")
	if out := run("who"); !strings.Contains(out, "docker-volume.shop_uploads.a") {
		t.Errorf("it is not said who has it: %s", out)
	}
	if out, err := r.Daemon.Try("exec", "shop_web_1", "touch", "/www/now"); err == nil {
		t.Errorf("the reader can write: %s", out)
	}
	run("down")
	r.follow(t, dir, p.Block(page, "run", "up"))
	run("delete")
	if got := r.docker(t, "volume", "ls", "--quiet"); got != "" {
		t.Errorf("after the last command there are %q", got)
	}
}

// postgres is an image that is used as Docker's postgres is, of the programs of Debian's package.
func postgres(t *testing.T, d *docker.Daemon) {
	t.Helper()
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if err != nil || len(found) == 0 {
		t.Skip("needs postgres (Debian: postgresql); not covered: docs/recipes/postgresql.md")
	}
	bin := filepath.Dir(found[len(found)-1])
	version := filepath.Base(filepath.Dir(bin))
	setpriv, err := exec.LookPath("setpriv")
	if err != nil {
		t.Skip("needs setpriv (Debian: util-linux); not covered: docs/recipes/postgresql.md")
	}
	d.Image(t, "programs", `CMD ["sh"]`, bin+"/postgres", bin+"/initdb", bin+"/psql", bin+"/pg_isready", setpriv)
	dir := t.TempDir()
	for name, content := range map[string]string{
		"etc/passwd": "root:x:0:0::/:/bin/sh\npostgres:x:999:999::/:/bin/sh\n",
		"etc/group":  "root:x:0:\npostgres:x:999:\n",
		"start": `#!/bin/sh
set -eu
PATH=` + bin + `:$PATH
become="/bin/setpriv --reuid=postgres --regid=postgres --clear-groups"
if ! [ -s "$PGDATA/PG_VERSION" ]; then
	busybox mkdir -p "$PGDATA" /var/run/postgresql
	busybox chown postgres "$PGDATA"
	(umask 077; echo "$POSTGRES_PASSWORD" >/password; busybox chown postgres /password)
	$become initdb --username=postgres --pwfile=/password --auth-local=trust --auth-host=scram-sha-256 \
		--locale=C --encoding=UTF8 --no-sync
fi
busybox mkdir -p /var/run/postgresql
busybox chown postgres /var/run/postgresql
exec $become postgres
`,
		"Dockerfile": "FROM programs\nCOPY . /\nENTRYPOINT [\"sh\", \"/start\"]\n",
	} {
		at := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(at), 0o755)
		if err == nil {
			err = os.WriteFile(at, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	lib := filepath.Dir(bin) + "/lib" // the server finds it from where it is itself
	copied := exec.Command("cp", "-rL", "--parents", bin+"/postgres", bin+"/initdb",
		lib+"/plpgsql.so", lib+"/dict_snowball.so", "/usr/share/postgresql/"+version, dir)
	if out, err := copied.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	d.Run(t, "build", "--quiet", "--tag", "postgres:17", dir)
}

// TestRecipePostgreSQL follows docs/recipes/postgresql.md on two hosts. The first one is cut off while it writes.
func TestRecipePostgreSQL(t *testing.T) {
	t.Parallel()
	const page = "postgresql.md"
	p := docpages.Read(t, "recipes/"+page)
	daemons := make([]*docker.Daemon, 2)
	for n := range daemons {
		daemons[n] = docker.Start(t, "docs/recipes/"+page)
		postgres(t, daemons[n])
	}
	c, hosts := twoHosts(t, daemons, "100s")
	server, first, second := c.Hosts[0], hosts[0], hosts[1]
	on := func(r *rig, name string) string {
		t.Helper()
		return r.follow(t, r.Host.Dir, strings.Replace(p.Block(page, "run", name), "10GiB", "1MiB", 1))
	}
	for _, r := range hosts {
		t.Cleanup(func() {
			if t.Failed() {
				out, err := r.Daemon.Try("logs", "--tail", "30", "db")
				t.Logf("the database on %s: %v\n%s", r.Name, err, out)
			}
			_, _ = r.Daemon.Try("rm", "--force", "db")
		})
		on(r, "prepare")
	}
	on(first, "start")
	on(first, "write")

	committed, ended := writeOrders(first)
	c.Net.Part(first.Net)
	before := committed.Load()
	out := on(second, "take-over")
	if !strings.Contains(out, "bread") {
		t.Errorf("the second host has %s", out)
	}
	<-ended
	if committed.Load() <= before {
		t.Error("the first host has written nothing after it was cut off")
	}
	rows := second.docker(t, "exec", "db", "psql", "--username", "postgres", "--tuples-only", "--no-align", "--command",
		"select max(id) from orders")
	if n, err := strconv.Atoi(strings.TrimSpace(rows)); err != nil || int64(n) < committed.Load() {
		t.Errorf("the first host has committed row %d, and the second one has %q: %v", committed.Load(), rows, err)
	}
	last, begun := moment(t, first, ".State.FinishedAt"), moment(t, second, ".State.StartedAt")
	if !begun.After(last) {
		t.Errorf("the first database ended at %v, and the second one began at %v", last, begun)
	}

	c.Net.Heal()
	server.AwaitNode("node-1", "ready")
	if out := on(first, "back"); !strings.Contains(out, "docker-volume.pgdata.node-2") {
		t.Errorf("the first host does not say who has the volume: %s", out)
	}
}

// writeOrders writes rows until the database has ended. committed is the last one.
func writeOrders(r *rig) (committed *atomic.Int64, ended chan struct{}) {
	committed, ended = new(atomic.Int64), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			out, err := r.Daemon.Command("exec", "db", "psql", "--username", "postgres", "--tuples-only", "--no-align",
				"--quiet", "--command", "insert into orders (what) values ('more') returning id").Output()
			if err != nil {
				return
			}
			if n, err := strconv.Atoi(strings.TrimSpace(string(out))); err == nil {
				committed.Store(int64(n))
			}
		}
	}()
	return committed, ended
}

// moment is a time in the state of the container of the database, once it is there.
func moment(t *testing.T, r *rig, field string) (at time.Time) {
	t.Helper()
	r.Eventually(field, func() error {
		out, err := r.Daemon.Try("inspect", "--format", "{{"+field+"}}", "db")
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		if at, err = time.Parse(time.RFC3339Nano, strings.TrimSpace(out)); err == nil && at.Year() < 2000 {
			err = errors.New("not yet")
		}
		return err
	})
	return at
}
