// The check of histories of a register that a lock guards, for the fault tests.
module github.com/sidekeeper/sidekeeper/tests/faults/linearizable

go 1.24.0

require github.com/anishathalye/porcupine v1.3.1
