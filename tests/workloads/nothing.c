/* A library that has a device library's name and none of its functions. */
int memscope_e2e_nothing(void);
int memscope_e2e_nothing(void) { return 0; }
