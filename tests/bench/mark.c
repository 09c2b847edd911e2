/* The end of boot: the instruction that tests/bench/insncount.c records the counters at. */
int main(void)
{
    __asm__ volatile("xchg %bx, %bx");
    return 0;
}
