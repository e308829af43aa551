// Package machine finds out which machine a program is for. It reads files, and runs nothing.
package machine

import (
	"debug/elf"
	"fmt"
	"io"
)

// machines are the ELF machines of Go's architectures for Linux.
var machines = map[string]elf.Machine{
	"386": elf.EM_386, "amd64": elf.EM_X86_64, "arm": elf.EM_ARM, "arm64": elf.EM_AARCH64, "loong64": elf.EM_LOONGARCH,
	"mips64le": elf.EM_MIPS, "ppc64le": elf.EM_PPC64, "riscv64": elf.EM_RISCV, "s390x": elf.EM_S390,
}

// Check returns an error that names both architectures if an ELF program is for another one than arch, Go's name.
func Check(r io.ReaderAt, arch string) error {
	program, err := elf.NewFile(r)
	if err != nil {
		return fmt.Errorf("it is incomplete: its headers cannot be read: %w", err)
	}
	if want, ok := machines[arch]; !ok || program.Machine == want {
		return nil
	}
	is := program.Machine.String()
	for name, machine := range machines {
		if machine == program.Machine {
			is = name
		}
	}
	return fmt.Errorf("it is for %s, and this machine is %s: choose the file that ends in _linux_%s", is, arch, arch)
}
