// Package resident keeps a process that runs for long small and quiet. sdk.Main uses it for plugins, and the agent for
// itself.
package resident

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Trim returns memory that is not used to the system, and unmaps the pages of the program. Most of these only the start
// of the process has used. They stay in the page cache as long as the kernel likes; those that are used again are
// mapped again, without a read, 16 at a time. So Trim costs two garbage collections and less than a millisecond after
// them.
//
// An error means that the pages of the program stay mapped.
func Trim() error {
	runtime.GC() // what is in a sync.Pool, such as the buffer of a long list, survives one collection
	debug.FreeOSMemory()
	maps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return fmt.Errorf("unmap the program's pages: %w", err)
	}
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("unmap the program's pages: %w", err)
	}
	for _, m := range mappings(maps, program) {
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, m.begin, m.end-m.begin, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("unmap the program's pages: madvise: %w", errno)
		}
	}
	return nil
}

// mapping is a range of addresses.
type mapping struct{ begin, end uintptr }

// mappings returns where a program is mapped as it is in its file, according to smaps (proc_pid_smaps(5)). A mapping
// with pages that were changed, as by a linker or a debugger, is left out: they would be lost.
func mappings(smaps []byte, program string) (found []mapping) {
	var last mapping
	for line := range bytes.Lines(smaps) {
		f := strings.Fields(string(line))
		switch {
		case len(f) >= 6 && strings.Join(f[5:], " ") == program && (f[1] == "r-xp" || f[1] == "r--p"):
			begin, end, _ := strings.Cut(f[0], "-")
			b, beginErr := strconv.ParseUint(begin, 16, 64)
			e, endErr := strconv.ParseUint(end, 16, 64)
			if last = (mapping{}); beginErr == nil && endErr == nil {
				last = mapping{uintptr(b), uintptr(e)}
			}
		case len(f) >= 5: // another mapping
			last = mapping{}
		case len(f) == 3 && f[0] == "Anonymous:" && f[1] == "0" && last != mapping{}:
			found = append(found, last)
		}
	}
	return found
}
